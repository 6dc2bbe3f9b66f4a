//! From what a fleet says of connections, and the certificate of one agent, to what that agent is offered.

use std::sync::Arc;

use crate::{
    catalog::{Connection, SecretContent, Values, Withheld, settings::FrozenCertificate},
    credentials::stored::{AgentCertificate, Given},
    opamp::{
        connection_settings::{Certificate, Confidential, IncompleteSettings, OpampSettings, Recipient},
        messages::AgentCapabilities as Bit,
        offer::ConnectionSettingsOffer,
    },
};

/// What an agent is offered of its fleet's settings.
#[derive(Clone, Debug)]
pub(in crate::bridge) enum Joined {
    /// Nothing: the fleet has none, the agent takes none, or nobody has approved of it.
    Nothing,
    /// This.
    Offered(Arc<ConnectionSettingsOffer>),
    /// Nothing for now, because of this. The agent keeps what it has.
    Withheld(Box<str>),
}

/// Why settings are not offered to an agent.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
enum NotOffered {
    /// A value is missing, or must not be sent.
    #[error("{0}")]
    Values(#[from] Withheld),
    /// They come with a certificate of the agent's own, and there is none yet.
    #[error("the certificate is being made")]
    NoCertificate,
    /// The operator has made the agent's key, which would be readable on the way.
    #[error("ConnectionSettings {settings} come with a private key, and the operator serves agents without TLS")]
    KeyNeedsTls {
        /// The name of the `ConnectionSettings`.
        settings: String,
    },
    /// They are not whole.
    #[error("{0}")]
    Incomplete(#[from] IncompleteSettings),
}

/// The offer for one agent: always whole, because an agent replaces all that it has by it (CON-18, AMB-26). `issued` is
/// its certificate of this fleet that counts now.
pub(in crate::bridge) fn join(
    connection: &Connection,
    issued: Option<(&AgentCertificate, &Given)>,
    recipient: Recipient,
) -> Joined {
    let issued = issued.filter(|_| connection.settings.certificate == FrozenCertificate::Issued);
    // Whoever has asked for a certificate takes the settings that it comes with, whatever it declares (AMB-32).
    if issued.is_none() && !recipient.capabilities.has(Bit::AcceptsOpAmpConnectionSettings) {
        return Joined::Nothing;
    }
    let offer = whole(connection, issued).and_then(|settings| Ok(settings.offer(recipient)?));
    match offer {
        Ok(offer) => Joined::Offered(Arc::new(offer)),
        Err(why) => Joined::Withheld(why.to_string().into()),
    }
}

fn whole(connection: &Connection, issued: Option<(&AgentCertificate, &Given)>) -> Result<OpampSettings, NotOffered> {
    match connection.values()? {
        Values::Whole(settings) => Ok(settings),
        Values::Personal(personal) => {
            let (certificate, given) = issued.ok_or(NotOffered::NoCertificate)?;
            if certificate.private_key.is_some() && connection.secrets == SecretContent::Withheld {
                return Err(NotOffered::KeyNeedsTls { settings: connection.settings.name.clone() });
            }
            Ok(personal.with(certificate_of(certificate, given)))
        }
    }
}

/// A key goes along only if the operator has made it (AMB-30).
fn certificate_of(certificate: &AgentCertificate, given: &Given) -> Certificate {
    Certificate {
        certificate: (*given.chain).into(),
        private_key: certificate.private_key.as_ref().map(|key| Confidential::new(key.expose())),
        authority: (!given.ca.is_empty()).then(|| (*given.ca).into()),
    }
}
