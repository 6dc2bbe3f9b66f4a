//! TLS on the accepted socket: 1.2 and 1.3, HTTP/1.1 within.
//!
//! Everything that rotates is asked anew in each handshake, so that nothing needs a restart and no connection that is open
//! notices: the server's own certificate from a [`ServerCertificate`], and whether a client's certificate counts from
//! [`ClientCertificates`]. Clients without a certificate are let in; what they may do, their credential decides.
//!
//! | module | its work |
//! |---|---|
//! | `certificate` | the server's own certificate, and its replacement |
//! | `clients` | whether a client's certificate counts, and with which alert it is refused |
//! | `acceptor` | the settings of a handshake |
//! | `handshake` | one handshake, and what else may come to a port with TLS |
//! | `protected` | the connection after that, and how much it keeps of what is not whole |

mod acceptor;
mod certificate;
mod clients;
mod handshake;
mod protected;

pub use acceptor::{Tls, TlsError};
pub use certificate::{ServerCertificate, ServerCertificateError};
pub use clients::{CertificateFault, ClientCertificates};
pub(super) use handshake::{Failure, shake_hands};
pub(super) use protected::Protected;
