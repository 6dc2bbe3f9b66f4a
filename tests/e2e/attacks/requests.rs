//! Requests for certificates that ask for more than an agent may have.

use std::{fs, path::PathBuf, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};

use super::{TOKEN, World, asking, certificate_in, report};
use crate::harness::{
    scripted::{BAD_REQUEST, error_kind, new_uid, uid_text},
    system,
};

/// Makes keys and requests with openssl, which asks for whatever it is told to.
struct Desk {
    folder: PathBuf,
}

impl Desk {
    fn openssl(&self, arguments: &str) -> String {
        let mut command = Command::new("openssl");
        command.current_dir(&self.folder).args(arguments.split(' '));
        system::run(command, "").unwrap_or_else(|error| panic!("openssl {arguments}: {error}"))
    }

    fn key(&self, name: &str, how: &str) {
        self.openssl(&format!("genpkey {how} -out {name}.key"));
    }

    fn request(&self, key: &str, more: &str) -> Vec<u8> {
        self.openssl(&format!("req -new -key {key}.key {more}")).into_bytes()
    }

    /// What the certificate says, as openssl tells it.
    fn read(&self, certificate: &str) -> String {
        fs::write(self.folder.join("issued.crt"), certificate).expect("a file");
        self.openssl("x509 -noout -text -in issued.crt")
    }
}

fn pem(der: &[u8]) -> Vec<u8> {
    let text = BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n").into_bytes()
}

/// What becomes of a request: the text of the certificate, or the refusal.
async fn ask(world: &World, uid: &Bytes, request: &[u8]) -> Result<String, String> {
    let mut socket = world.caller().bearer(TOKEN).websocket().await.expect("a member of the fleet");
    let answer = socket.exchange(&report(uid)).await;
    assert_eq!(error_kind(&answer), None, "{answer:?}");
    let mut asking = asking(uid, request);
    asking.sequence_num = 2;
    let mut answer = socket.exchange(&asking).await;
    loop {
        if let Some(error) = &answer.error_response {
            assert_eq!(error.r#type, BAD_REQUEST, "{error:?}");
            return Err(error.error_message.clone());
        }
        if let Some(certificate) = certificate_in(&answer) {
            return Ok(certificate);
        }
        answer = socket.answer().await;
    }
}

/// The certificates of an agent that are in the cluster.
async fn kept(world: &World, uid: &Bytes) -> usize {
    let secrets: Api<Secret> = Api::namespaced(world.scenario.client.clone(), &world.scenario.namespace);
    let listed = secrets.list(&ListParams::default().fields("type=opamp.dev/agent-certificate")).await;
    let of_agent = format!("opamp-cert-{}", uid_text(uid));
    let names = listed.expect("the API server lists").items.into_iter().filter_map(|it| it.metadata.name);
    names.filter(|name| name.starts_with(&of_agent)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_good_is_refused_and_leaves_nothing() {
    let world = World::begin("bad-csr").await;
    let desk = Desk { folder: world.scenario.folder.clone() };
    let (victim, _) = world.enrolled().await;
    let (named, name) = (uid_text(&victim), world.name(&world.scenario.namespace, "edge", &victim));
    desk.key("good", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256");
    desk.key("weak", "-algorithm RSA -pkeyopt rsa_keygen_bits:1024");
    desk.key("exponent", "-algorithm RSA -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_pubexp:3");
    desk.key("curve", "-algorithm EC -pkeyopt ec_paramgen_curve:secp256k1");
    let good = desk.request("good", "-subj /CN=collector");
    let der = desk.folder.join("good.der");
    desk.openssl(&format!("req -new -key good.key -subj /CN=collector -outform DER -out {}", der.display()));
    let der = fs::read(der).expect("the request");
    let mut forged = der.clone();
    // The first letter of the subject's name: what was signed is not what it says now.
    let place = forged.windows(9).position(|part| part == b"collector").expect("the subject");
    forged[place] = b'C';
    let key = fs::read(desk.folder.join("good.key")).expect("the key");
    for (case, request) in [
        ("RSA of 1024 bits", desk.request("weak", "-subj /CN=collector")),
        ("RSA with the exponent 3", desk.request("exponent", "-subj /CN=collector")),
        ("a curve that is not served", desk.request("curve", "-subj /CN=collector")),
        ("signed with SHA-1", desk.request("good", "-sha1 -subj /CN=collector")),
        ("the name of another agent", desk.request("good", &format!("-subj /CN={named}"))),
        (
            "the certificate name of another agent",
            desk.request("good", &format!("-subj /CN=x -addext subjectAltName=URI:{name}")),
        ),
        (
            "a URN of another agent",
            desk.request("good", &format!("-subj /CN=x -addext subjectAltName=URI:urn:uuid:{named}")),
        ),
        ("DER", der.clone()),
        ("not signed with its key", pem(&forged)),
        ("cut off", pem(&der[..der.len() - 9])),
        ("with something behind it", pem(&[&der[..], &[0; 9]].concat())),
        ("twice", [&good[..], &good[..]].concat()),
        ("a private key", key),
        ("17 KiB", [&good[..], &vec![b'\n'; 17 << 10]].concat()),
        ("nothing", Vec::new()),
    ] {
        let uid = new_uid();
        let refusal = ask(&world, &uid, &request).await.expect_err(case);
        println!("{case}: {refusal}");
        assert!(!refusal.contains("BEGIN") && !refusal.contains(&named), "{case}: nothing is quoted");
        assert_eq!(kept(&world, &uid).await, 0, "{case}: nothing is kept");
    }
    assert_eq!(kept(&world, &victim).await, 1, "the victim has its own");
    world.served("after bad requests").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_for_the_certificate_says_what_the_operator_says() {
    let world = World::begin("greedy-csr").await;
    let desk = Desk { folder: world.scenario.folder.clone() };
    desk.key("own", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256");
    let foreign = world.name("bank", "branch", &new_uid());
    for (case, more) in [
        (
            "CA:TRUE",
            "-subj /CN=x -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign,cRLSign".to_owned(),
        ),
        (
            "names of the server",
            "-subj /CN=opamp-operator -addext subjectAltName=DNS:localhost,IP:127.0.0.1".to_owned(),
        ),
        (
            "the name of nobody in another tenant",
            format!(
                "-subj /O=system:masters/CN=x -addext subjectAltName=DNS:{}",
                foreign.rsplit('/').nth(2).unwrap_or_default()
            ),
        ),
        (
            "to be a server",
            "-subj /CN=x -addext extendedKeyUsage=serverAuth,codeSigning,anyExtendedKeyUsage".to_owned(),
        ),
        ("a request of another agent once more", "-subj /CN=collector".to_owned()),
    ] {
        let uid = new_uid();
        let issued = ask(&world, &uid, &desk.request("own", &more)).await.expect(case);
        let text = desk.read(&issued);
        println!("{case}: {text}");
        let name = world.name(&world.scenario.namespace, "edge", &uid);
        assert!(text.contains(&format!("URI:{name}")), "{case}: its own name");
        assert_eq!(text.matches("URI:").count(), 1, "{case}: and no other");
        assert!(text.contains("TLS Web Client Authentication"), "{case}");
        for more in [
            "CA:TRUE",
            "DNS:",
            "IP Address:",
            "Server Authentication",
            "Certificate Sign",
            "system:masters",
            "Any Extended",
        ] {
            assert!(!text.contains(more), "{case}: {more}");
        }
    }
}
