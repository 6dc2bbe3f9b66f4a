//! The command line: what can be said, and what it means. Nothing here acts.

use std::{collections::BTreeSet, net::SocketAddr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use opamp_operator::{credentials::profile::ServerName, kubernetes::ObjectKey, server::Cidr};

/// `AgentFleet` is to telemetry agents what `Deployment` is to pods.
#[derive(Debug, Parser)]
#[command(name = "opamp-operator", disable_version_flag = true, max_term_width = 100)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator: the OpAMP server and the controllers
    #[command(
        long_about = "Run the operator: the OpAMP server and the controllers.\n\nThe cluster comes from KUBECONFIG, else \
                      from the pod's service account. Every flag can be given as an environment variable instead. \
                      SIGTERM and SIGINT drain connections and end with 0; a wrong value ends with 2, a failure at run \
                      time with 1."
    )]
    Run(Box<RunArguments>),
    /// Print the custom resource definitions as YAML
    Crds,
    /// Print the version
    Version,
}

/// What can be set on `opamp-operator run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// Address and port of the OpAMP server, for WebSocket and HTTP
    #[arg(long, env = "OPAMP_OPERATOR_LISTEN", default_value = "0.0.0.0:4320", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// URL path of the OpAMP server
    #[arg(long, env = "OPAMP_OPERATOR_PATH", default_value = "/v1/opamp", value_parser = url_path)]
    pub path: String,

    /// Secret of the type kubernetes.io/tls with the server's certificate [default: opamp-server-tls in its own namespace]
    #[arg(long, env = "OPAMP_OPERATOR_TLS_SECRET", value_name = "NAMESPACE/NAME", value_parser = secret_name)]
    pub tls_secret: Option<ObjectKey>,

    /// Serve agents without TLS: whoever is on the way reads and changes what they are sent
    #[arg(long, env = "OPAMP_OPERATOR_PLAINTEXT")]
    pub plaintext: bool,

    /// Offer content that comes from Secrets over plain text elsewhere than on loopback
    #[arg(long, env = "OPAMP_OPERATOR_PLAINTEXT_SECRETS")]
    pub plaintext_secrets: bool,

    /// Namespaces whose fleets may list Anonymous, `*` for all [default: the operator's own]
    #[arg(
        long, env = "OPAMP_OPERATOR_ANONYMOUS_NAMESPACES", value_delimiter = ',', value_name = "A,B",
        value_parser = namespace_or_all
    )]
    pub anonymous_namespaces: Vec<String>,

    /// Name of the cluster in certificates of agents [default: one made up with the CA, kept with it]
    #[arg(long, env = "OPAMP_OPERATOR_CLUSTER_NAME", value_name = "NAME", value_parser = cluster_name)]
    pub cluster_name: Option<String>,

    /// Further names and addresses in the server's own certificate; without --tls-secret
    #[arg(
        long, env = "OPAMP_OPERATOR_SERVER_NAMES", value_delimiter = ',', value_name = "A,B",
        value_parser = server_name
    )]
    pub server_names: Vec<ServerName>,

    /// Address and port of /healthz, /readyz, /metrics and /crl
    #[arg(long, env = "OPAMP_OPERATOR_ADMIN_LISTEN", default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    pub admin_listen: SocketAddr,

    /// The operator's own namespace: Leases, unmatched agents [default: `POD_NAMESPACE`, then the kubeconfig's]
    #[arg(long, env = "OPAMP_OPERATOR_NAMESPACE", value_name = "NAME", value_parser = namespace_name)]
    pub namespace: Option<String>,

    /// Watch only these namespaces [default: all]
    #[arg(
        long, env = "OPAMP_OPERATOR_NAMESPACES", value_delimiter = ',', value_name = "A,B",
        value_parser = namespace_name
    )]
    pub namespaces: Vec<String>,

    /// Name of this replica [default: `POD_NAME`, then the host name]
    #[arg(long, env = "OPAMP_OPERATOR_REPLICA_NAME", value_name = "NAME", value_parser = replica_name)]
    pub replica_name: Option<String>,

    /// Shape of the log lines
    #[arg(long, env = "OPAMP_OPERATOR_LOG_FORMAT", value_enum, ignore_case = true, default_value = "text")]
    pub log_format: LogFormat,

    /// What is logged: a level, or a filter such as `info,opamp_operator::server=debug`
    #[arg(long, env = "OPAMP_OPERATOR_LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// Proxies in front of the OpAMP server.
    #[command(flatten)]
    pub proxies: ProxyArguments,

    /// Limits and rates.
    #[command(flatten)]
    pub limits: LimitArguments,
}

/// Proxies in front of the OpAMP server, and what they are believed.
#[derive(Args, Debug)]
#[command(next_help_heading = "Proxies")]
pub struct ProxyArguments {
    /// Addresses of proxies that are believed, such as `10.0.0.0/8`; what they are believed, the next two flags say
    #[arg(long, env = "OPAMP_OPERATOR_TRUSTED_PROXIES", value_delimiter = ',', value_name = "CIDR,CIDR")]
    pub trusted_proxies: Vec<Cidr>,

    /// Trusted proxies begin each connection with a PROXY header, version 2
    #[arg(long, env = "OPAMP_OPERATOR_PROXY_PROTOCOL")]
    pub proxy_protocol: bool,

    /// Trusted proxies tell the certificates of clients in the header Client-Cert
    #[arg(long, env = "OPAMP_OPERATOR_CLIENT_CERTIFICATE_HEADER")]
    pub client_certificate_header: bool,
}

/// Limits and rates; each has its reason in `docs/operations.md`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits and rates")]
pub struct LimitArguments {
    /// Connections held at once; what comes on top is answered 503
    #[arg(long, env = "OPAMP_OPERATOR_MAX_CONNECTIONS", default_value_t = 15_000, value_parser = at_least_one)]
    pub max_connections: usize,

    /// Agent objects in the cluster; agents beyond are served without one
    #[arg(long, env = "OPAMP_OPERATOR_MAX_AGENTS", default_value_t = 10_000, value_parser = at_least_one)]
    pub max_agents: usize,

    /// Agent objects of agents that no fleet ever selected
    #[arg(long, env = "OPAMP_OPERATOR_MAX_UNMATCHED_AGENTS", default_value_t = 500)]
    pub max_unmatched_agents: usize,

    /// Agent objects that wait for approval in one namespace; agents beyond are refused
    #[arg(long, env = "OPAMP_OPERATOR_MAX_PENDING_AGENTS", default_value_t = 500)]
    pub max_pending_agents: usize,

    /// Largest message taken from an agent, in bytes after decompression
    #[arg(long, env = "OPAMP_OPERATOR_MAX_MESSAGE_SIZE", default_value_t = 4 << 20, value_parser = at_least_one)]
    pub max_message_size: usize,

    /// WebSocket handshakes a second; more wait their turn
    #[arg(long, env = "OPAMP_OPERATOR_HANDSHAKE_RATE", default_value_t = 1_000, value_parser = at_least_one)]
    pub handshake_rate: usize,

    /// Handshakes that wait their turn; more get a 503
    #[arg(long, env = "OPAMP_OPERATOR_HANDSHAKE_QUEUE", default_value_t = 10_000)]
    pub handshake_queue: usize,

    /// Messages a second from one connection; the rest waits in its socket
    #[arg(long, env = "OPAMP_OPERATOR_MESSAGE_RATE", default_value_t = 500, value_parser = at_least_one)]
    pub message_rate: usize,

    /// Messages that one connection may send at once beyond its rate
    #[arg(long, env = "OPAMP_OPERATOR_MESSAGE_BURST", default_value_t = 2_000, value_parser = at_least_one)]
    pub message_burst: usize,

    /// Bytes of all unfinished messages together
    #[arg(long, env = "OPAMP_OPERATOR_MAX_UNFINISHED_SIZE", default_value_t = 128 << 20, value_parser = at_least_one)]
    pub max_unfinished_size: usize,

    /// WebSockets closed a second when the operator ends
    #[arg(long, env = "OPAMP_OPERATOR_DRAIN_RATE", default_value_t = 500, value_parser = at_least_one)]
    pub drain_rate: usize,

    /// WebSockets that may be open before their agent has reported
    #[arg(long, env = "OPAMP_OPERATOR_MAX_SILENT_CONNECTIONS", default_value_t = 2_000, value_parser = at_least_one)]
    pub max_silent_connections: usize,

    /// Writes to the API server a second
    #[arg(long, env = "OPAMP_OPERATOR_WRITE_RATE", default_value_t = 50, value_parser = at_least_one)]
    pub write_rate: usize,

    /// Writes to the API server that may be saved up
    #[arg(long, env = "OPAMP_OPERATOR_WRITE_BURST", default_value_t = 2_000, value_parser = at_least_one)]
    pub write_burst: usize,

    /// Agents that are written at the same time, each over a connection of its own
    #[arg(long, env = "OPAMP_OPERATOR_MAX_WRITES_IN_FLIGHT", default_value_t = 16, value_parser = at_least_one)]
    pub max_writes_in_flight: usize,

    /// Seconds of silence after which an HTTP agent counts as disconnected
    #[arg(long, env = "OPAMP_OPERATOR_HTTP_SILENCE_SECONDS", default_value_t = 300, value_parser = at_least_one)]
    pub http_silence_seconds: usize,
}

impl RunArguments {
    /// What does not go together, in a sentence.
    pub fn contradiction(&self) -> Option<&'static str> {
        let ProxyArguments { trusted_proxies, proxy_protocol, client_certificate_header } = &self.proxies;
        let asks_for_proxies = *proxy_protocol || *client_certificate_header;
        if self.plaintext && self.tls_secret.is_some() {
            Some("--tls-secret is for TLS, and --plaintext serves without; leave one of them out")
        } else if asks_for_proxies && trusted_proxies.is_empty() {
            Some("--proxy-protocol and --client-certificate-header need the addresses of --trusted-proxies")
        } else if !asks_for_proxies && !trusted_proxies.is_empty() {
            Some("--trusted-proxies does nothing without --proxy-protocol or --client-certificate-header")
        } else {
            None
        }
    }
}

/// The shape of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Which namespaces may have fleets that take anyone.
#[must_use]
pub fn anonymous_namespaces(given: impl Iterator<Item = String>, own: &str) -> BTreeSet<String> {
    let given: BTreeSet<String> = given.collect();
    if given.is_empty() { BTreeSet::from([own.to_owned()]) } else { given }
}

/// The name of a namespace: an RFC 1123 label. An empty one counts as not given, which is how templates of manifests
/// leave a variable.
fn namespace_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() <= 63 && is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("a namespace has at most 63 lower case letters, digits and '-'".into())
    }
}

/// The name of a cluster: it becomes a part of URIs. An empty one counts as not given.
fn cluster_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() <= 63 && is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("the name of a cluster has at most 63 lower case letters, digits and '-'".into())
    }
}

fn server_name(text: &str) -> Result<ServerName, String> {
    ServerName::parse(text).map_err(|error| error.to_string())
}

fn namespace_or_all(text: &str) -> Result<String, String> {
    if text == "*" { Ok(text.to_owned()) } else { namespace_name(text) }
}

/// The place of a Secret.
fn secret_name(text: &str) -> Result<ObjectKey, String> {
    let is_name = |name: &str| name.len() <= 253 && name.split('.').all(is_label);
    match text.split_once('/') {
        Some((namespace, name)) if namespace.len() <= 63 && is_label(namespace) && is_name(name) => {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err("a Secret is named by its namespace and its name, such as opamp-system/opamp-tls".into()),
    }
}

/// The longest name of a replica: with what stands before it, it is the name of a Lease, which has at most 253.
const REPLICA_NAME_LIMIT: usize = 200;

/// The name of a replica: it becomes part of a Lease's name, an RFC 1123 subdomain. An empty one counts as not given.
pub fn replica_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() <= REPLICA_NAME_LIMIT && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err(format!("a replica's name has at most {REPLICA_NAME_LIMIT} lower case letters, digits, '-' and '.'"))
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends_well = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    text.bytes().all(inner) && ends_well(text.as_bytes().first()) && ends_well(text.as_bytes().last())
}

fn url_path(text: &str) -> Result<String, String> {
    let legal = text.starts_with('/') && text.len() > 1 && !text.contains(['?', '#', ' ']);
    if legal {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("a path begins with / and has no query, such as /v1/opamp".into())
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number, at least 1".into()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_flag_of_run_has_an_environment_variable_and_help() {
        let command = CommandLine::command();
        let run = command.find_subcommand("run").unwrap();
        for argument in run.get_arguments().filter(|argument| argument.get_id() != "help") {
            let name = argument.get_id().as_str();
            let expected = format!("OPAMP_OPERATOR_{}", name.to_uppercase());
            assert_eq!(argument.get_env().and_then(|env| env.to_str()), Some(expected.as_str()), "{name}");
            assert!(argument.get_help().is_some(), "{name} has help");
        }
    }

    #[test]
    fn agents_find_the_operator_where_the_specification_says() {
        // TRN-02, TRN-03
        let Command::Run(run) = CommandLine::try_parse_from(["opamp-operator", "run"]).unwrap().command else {
            panic!("run is run");
        };
        assert_eq!((run.listen.port(), run.path.as_str()), (4320, "/v1/opamp"));
    }

    #[test]
    fn the_page_on_operations_tells_every_flag_with_its_default() {
        let page = include_str!("../docs/operations.md");
        let command = CommandLine::command();
        let run = command.find_subcommand("run").unwrap();
        for argument in run.get_arguments().filter(|argument| argument.get_id() != "help") {
            let flag = format!("| `--{}` |", argument.get_long().unwrap());
            let line = page.lines().find(|line| line.starts_with(&flag)).unwrap_or_else(|| panic!("{flag}"));
            for default in argument.get_default_values().iter().map(|default| default.to_str().unwrap()) {
                let told = ["true", "false"].contains(&default) || line.contains(&format!("| `{default}` |"));
                assert!(told, "{line}: {default}");
            }
        }
    }

    #[test]
    fn wrong_values_are_refused_with_a_sentence() {
        for arguments in [
            ["opamp-operator", "run", "--listen=nowhere"],
            ["opamp-operator", "run", "--path=v1"],
            ["opamp-operator", "run", "--max-agents=0"],
            ["opamp-operator", "run", "--log-format=xml"],
            ["opamp-operator", "run", "--namespace=Tele_metry"],
            ["opamp-operator", "run", "--namespaces=shop,*"],
            ["opamp-operator", "run", "--anonymous-namespaces=-shop"],
            ["opamp-operator", "run", "--replica-name=host_1"],
            ["opamp-operator", "run", "--tls-secret=opamp-tls"],
            ["opamp-operator", "run", "--tls-secret=opamp-system/"],
            ["opamp-operator", "run", "--trusted-proxies=10.0.0.0/8,proxy"],
        ] {
            let error = CommandLine::try_parse_from(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
        }
    }

    #[test]
    fn flags_that_do_not_go_together_are_told_so() {
        for (flags, expected) in [
            (&[][..], None),
            (&["--plaintext"], None),
            (&["--tls-secret=opamp-system/opamp-tls"], None),
            (&["--trusted-proxies=10.0.0.0/8,::1", "--proxy-protocol"], None),
            (&["--plaintext", "--trusted-proxies=10.0.0.0/8", "--client-certificate-header"], None),
            (&["--plaintext", "--tls-secret=opamp-system/opamp-tls"], Some("--tls-secret")),
            (&["--proxy-protocol"], Some("--trusted-proxies")),
            (&["--client-certificate-header"], Some("--trusted-proxies")),
            (&["--trusted-proxies=10.0.0.0/8"], Some("does nothing")),
        ] {
            let line = CommandLine::try_parse_from([&["opamp-operator", "run"], flags].concat()).unwrap();
            let Command::Run(run) = line.command else { panic!("run is run") };
            let contradiction = run.contradiction().unwrap_or_default();
            assert_eq!(contradiction.is_empty(), expected.is_none(), "{flags:?}: {contradiction}");
            assert!(contradiction.contains(expected.unwrap_or_default()), "{flags:?}: {contradiction}");
        }
    }

    #[test]
    fn without_a_list_only_the_own_namespace_may_take_anyone() {
        let given = |names: &[&str]| anonymous_namespaces(names.iter().map(ToString::to_string), "own");
        assert_eq!(given(&[]), BTreeSet::from(["own".to_owned()]));
        assert_eq!(given(&["*"]), BTreeSet::from(["*".to_owned()]));
    }

    #[test]
    fn names_that_kubernetes_takes_are_taken_and_empty_ones_are_not_given() {
        for arguments in [
            ["opamp-operator", "run", "--namespaces=shop,bank-2"],
            ["opamp-operator", "run", "--namespaces="],
            ["opamp-operator", "run", "--anonymous-namespaces=*"],
            ["opamp-operator", "run", "--replica-name=node-1.example.com"],
            ["opamp-operator", "run", "--replica-name="],
        ] {
            assert!(CommandLine::try_parse_from(arguments).is_ok(), "{arguments:?}");
        }
    }
}
