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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use prost::Message as _;

    use super::*;
    use crate::{
        catalog::{
            Settings,
            settings::{CredentialReference, FrozenHeader, HeaderValue},
        },
        credentials::{
            key::{KeyId, PrivateKey},
            serial::Serial,
            stored::{Held, KeyOrigin, Signer},
        },
        kubernetes::ObjectKey,
        opamp::{
            InstanceUid,
            capabilities::AgentCapabilities,
            connection_settings::Transport,
            messages::{OpAmpConnectionSettings, ServerToAgent},
        },
    };

    const TAKES: u64 = Bit::AcceptsOpAmpConnectionSettings as u64;

    fn connection(certificate: FrozenCertificate, secrets: SecretContent) -> Connection {
        let settings = Settings {
            name: "edge".into(),
            endpoint: "wss://opamp.example.com/v1/opamp".into(),
            headers: Vec::new(),
            certificate,
            tls: None,
            proxy: None,
            heartbeat_seconds: 30,
        };
        Connection { settings: Arc::new(settings), credentials: None, secrets }
    }

    fn issued(private_key: Option<&str>) -> AgentCertificate {
        let held = Held {
            digest: [1; 32],
            issuer: KeyId([2; 32]),
            serial: Serial::random(),
            not_before: Timestamp::MIN,
            not_after: Timestamp::MAX,
        };
        let given = Given {
            chain: "the chain".into(),
            ca: "the CA".into(),
            signer: Signer::Operator,
            certificate: held,
            former: None,
        };
        AgentCertificate {
            key: ObjectKey::new("telemetry", "opamp-cert-1"),
            object_uid: String::new(),
            version: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            agent: InstanceUid::generate(),
            fleet: "edge".into(),
            origin: if private_key.is_some() { KeyOrigin::Operator } else { KeyOrigin::Agent },
            request: None,
            private_key: private_key.map(|key| PrivateKey::from_pem(key.into())),
            given: Some(Arc::new(given)),
            refused: None,
            renew: None,
            attempt: 0,
        }
    }

    fn joined(connection: &Connection, issued: Option<&AgentCertificate>, capabilities: u64) -> Joined {
        let issued = issued.and_then(|certificate| Some((certificate, &**certificate.given.as_ref()?)));
        let capabilities = AgentCapabilities::from_bits(capabilities);
        join(connection, issued, Recipient { capabilities, transport: Transport::WebSocket })
    }

    fn offered(joined: Joined) -> OpAmpConnectionSettings {
        let Joined::Offered(offer) = joined else { panic!("{joined:?}") };
        let message = ServerToAgent::decode(offer.encoded.clone()).expect("a message");
        message.connection_settings.and_then(|settings| settings.opamp).expect("settings")
    }

    #[test]
    fn a_certificate_goes_along_where_the_fleet_asks_for_it_and_the_key_if_the_operator_has_made_it() {
        // AMB-30, CON-18, CSR-06
        let (asked, none) = (FrozenCertificate::Issued, FrozenCertificate::None);
        for (case, certificate, key, expected) in [
            ("the agent's own key", &asked, None, Some(("the chain", "", "the CA"))),
            ("the operator's", &asked, Some("the key"), Some(("the chain", "the key", "the CA"))),
            ("a fleet that wants none", &none, Some("the key"), None),
        ] {
            let connection = connection(certificate.clone(), SecretContent::Offered);
            let certificate = offered(joined(&connection, Some(&issued(key)), TAKES)).certificate;
            let expected = expected.map(|(cert, private_key, ca_cert)| crate::opamp::messages::TlsCertificate {
                cert: cert.into(),
                private_key: private_key.into(),
                ca_cert: ca_cert.into(),
            });
            assert_eq!(certificate, expected, "{case}");
        }
    }

    #[test]
    fn what_cannot_be_whole_is_withheld_with_the_reason() {
        let asked = |secrets| connection(FrozenCertificate::Issued, secrets);
        let mut token = connection(FrozenCertificate::None, SecretContent::Offered);
        let reference = CredentialReference::secret("token", "header");
        let header = FrozenHeader { name: "Authorization".into(), value: HeaderValue::Reference(reference) };
        token.settings = Arc::new(Settings { headers: vec![header], ..Settings::clone(&token.settings) });
        let missing = "ConnectionSettings edge need key header of Secret token, which is missing or not usable";
        let plain = "ConnectionSettings edge come with a private key, and the operator serves agents without TLS";
        for (connection, issued, expected) in [
            (asked(SecretContent::Offered), None, "the certificate is being made"),
            (asked(SecretContent::Withheld), Some(issued(Some("the key"))), plain),
            (token, None, missing),
        ] {
            let joined = joined(&connection, issued.as_ref(), TAKES);
            assert!(matches!(&joined, Joined::Withheld(why) if **why == *expected), "{joined:?}");
        }
        let own_key = joined(&asked(SecretContent::Withheld), Some(&issued(None)), TAKES);
        assert!(matches!(own_key, Joined::Offered(_)), "a certificate is no secret");
    }

    #[test]
    fn whoever_does_not_take_settings_gets_none_but_those_it_has_asked_for() {
        // CON-04, AMB-32
        let connection = |certificate| connection(certificate, SecretContent::Offered);
        assert!(matches!(joined(&connection(FrozenCertificate::None), None, 0), Joined::Nothing));
        assert!(matches!(joined(&connection(FrozenCertificate::Issued), None, 0), Joined::Nothing));
        assert!(matches!(joined(&connection(FrozenCertificate::Issued), Some(&issued(None)), 0), Joined::Offered(_)));
    }
}
