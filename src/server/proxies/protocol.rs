//! The PROXY protocol, version 2: where a connection comes from, in front of everything else that it brings.
//!
//! As in <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, §2.2. What a proxy adds behind the addresses is
//! skipped.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::io::AsyncReadExt;

use super::super::stream::Stream;

/// How every such header begins.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes behind the fixed part: addresses of IPv6 have 36, and the extensions of the usual load balancers less than 200.
const BODY_BYTES: u16 = 1 << 10;

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// It ended before, or broke.
    #[error("the connection ended within the PROXY header")]
    Broken(#[from] io::Error),
    /// It begins otherwise.
    #[error("there is no PROXY header of version 2")]
    Missing,
    /// A command or a family of addresses that is not of TCP.
    #[error("the PROXY header is of a kind that is not supported")]
    Unsupported,
    /// It says less than it must, or far too much.
    #[error("the PROXY header has {0} bytes behind its fixed part, which cannot be")]
    Length(u16),
}

/// What the fixed part says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Said {
    /// Nothing of use: the proxy speaks for itself, or does not know.
    Nothing,
    /// Addresses of IPv4 follow.
    V4,
    /// Addresses of IPv6 follow.
    V6,
}

/// Reads the header, and nothing behind it. `None`: the address is that of the connection itself.
pub async fn read_address<S: Stream>(stream: &mut S) -> Result<Option<SocketAddr>, ProxyError> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).await?;
    let (said, length) = understand(fixed)?;
    let mut body = [0; BODY_BYTES as usize];
    let body = &mut body[..length.into()];
    stream.read_exact(body).await?;
    Ok(source(said, body))
}

fn understand(fixed: [u8; 16]) -> Result<(Said, u16), ProxyError> {
    let [signature @ .., command, family, high, low] = fixed;
    if signature != SIGNATURE {
        return Err(ProxyError::Missing);
    }
    let said = match (command, family) {
        // LOCAL; and PROXY, without the address or over no transport that has one.
        (0x20, _) | (0x21, 0x00) => Said::Nothing,
        (0x21, 0x11) => Said::V4,
        (0x21, 0x21) => Said::V6,
        _ => return Err(ProxyError::Unsupported),
    };
    let length = u16::from_be_bytes([high, low]);
    let least = match said {
        Said::Nothing => 0,
        Said::V4 => 12,
        Said::V6 => 36,
    };
    if (least..=BODY_BYTES).contains(&length) { Ok((said, length)) } else { Err(ProxyError::Length(length)) }
}

/// The address of the source: addresses come first, then ports, the source's before the destination's.
fn source(said: Said, body: &[u8]) -> Option<SocketAddr> {
    match said {
        Said::Nothing => None,
        Said::V4 => {
            let address = Ipv4Addr::from(*body.first_chunk::<4>()?);
            Some((address, port(body.get(8..)?)?).into())
        }
        Said::V6 => {
            let address = Ipv6Addr::from(*body.first_chunk::<16>()?);
            Some((address, port(body.get(32..)?)?).into())
        }
    }
}

fn port(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(command: u8, family: u8, length: u16, body: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &length.to_be_bytes(), body].concat()
    }

    async fn outcome(bytes: &[u8]) -> (Result<Option<SocketAddr>, String>, usize) {
        let (mut ours, mut theirs) = tokio::io::duplex(4 << 10);
        tokio::io::AsyncWriteExt::write_all(&mut ours, bytes).await.unwrap();
        drop(ours);
        let address = read_address(&mut theirs).await.map_err(|error| error.to_string());
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.unwrap();
        (address, rest.len())
    }

    #[tokio::test]
    async fn the_source_is_told_and_nothing_behind_the_header_is_read() {
        const V4: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0x9c, 0x40, 0x10, 0xe0];
        let v6 = [&[0x20, 0x01, 0x0d, 0xb8][..], &[0; 11], &[7], &[0; 16], &[0x9c, 0x40, 0x10, 0xe0]].concat();
        let with_extension = [&V4[..], &[0x04, 0, 1, 0]].concat();
        let large = [&V4[..], &[0; 1012]].concat();
        for (case, command, family, body, expected) in [
            ("IPv4", 0x21, 0x11, &V4[..], Some("192.0.2.7:40000")),
            ("IPv6", 0x21, 0x21, &v6, Some("[2001:db8::7]:40000")),
            ("an extension", 0x21, 0x11, &with_extension, Some("192.0.2.7:40000")),
            ("the largest", 0x21, 0x11, &large, Some("192.0.2.7:40000")),
            ("a proxy for itself", 0x20, 0x00, &[], None),
            ("a proxy for itself, with an address", 0x20, 0x11, &V4, None),
            ("unknown", 0x21, 0x00, &[], None),
        ] {
            let length = u16::try_from(body.len()).unwrap();
            let bytes = [header(command, family, length, body), b"GET".to_vec()].concat();
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(outcome(&bytes).await, (Ok(expected), 3), "{case}");
        }
    }

    #[tokio::test]
    async fn what_is_malformed_is_refused() {
        let (missing, unsupported) =
            ("there is no PROXY header of version 2", "the PROXY header is of a kind that is not supported");
        let broken = "the connection ended within the PROXY header";
        let length = |bytes| format!("the PROXY header has {bytes} bytes behind its fixed part, which cannot be");
        for (case, bytes, expected) in [
            ("nothing", Vec::new(), broken.to_owned()),
            ("HTTP", b"GET /v1/opamp HTTP/1.1\r\n\r\n".to_vec(), missing.into()),
            ("version 1", b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 4320\r\n".to_vec(), missing.into()),
            ("half", header(0x21, 0x11, 12, &[1; 11]), broken.into()),
            ("another version", header(0x11, 0x11, 12, &[1; 12]), unsupported.into()),
            ("another command", header(0x22, 0x11, 12, &[1; 12]), unsupported.into()),
            ("UDP", header(0x21, 0x12, 12, &[1; 12]), unsupported.into()),
            ("a UNIX socket", header(0x21, 0x31, 216, &[1; 216]), unsupported.into()),
            ("too short for IPv4", header(0x21, 0x11, 11, &[1; 11]), length(11)),
            ("too short for IPv6", header(0x21, 0x21, 35, &[1; 35]), length(35)),
            ("too long", header(0x21, 0x11, 1_025, &[1; 1_025]), length(1_025)),
            ("far too long", header(0x20, 0x00, 65_535, &[]), length(65_535)),
        ] {
            assert_eq!(outcome(&bytes).await.0, Err(expected), "{case}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_understood_or_refused(fixed: [u8; 16], body in prop::collection::vec(any::<u8>(), 0..64)) {
            let signed = header(fixed[12], fixed[13], u16::from_be_bytes([fixed[14], fixed[15]]), &[]);
            for fixed in [fixed, signed.try_into().unwrap()] {
                if let Ok((said, _)) = understand(fixed) {
                    let _ = source(said, &body);
                }
            }
        }
    }
}
