//! What the listener counts. Every label has a fixed set of values.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::connection::Transport;

type Count<L> = Family<L, Counter<u64, AtomicU64>>;

/// The metric families of the listener. Clones count into the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Open WebSockets, and HTTP connections that are not (yet) one.
    pub connections: Family<TransportLabel, Gauge>,
    /// Handshakes that wait for their turn.
    pub handshakes_waiting: Gauge,
    /// Requests to open a WebSocket, by what became of them.
    pub handshakes: Count<HandshakeLabel>,
    /// TLS handshakes that are not finished.
    pub tls_handshakes_open: Gauge,
    /// Ended TLS handshakes, by what became of them.
    pub tls_handshakes: Count<TlsLabel>,
    /// 1 if agents are served with TLS, 0 if in plain text.
    pub listener_tls: Gauge,
    /// When the server's certificate expires, in seconds since 1970; 0 as long as there is none.
    pub server_certificate_not_after: Gauge,
    /// Certificates for the server that could not be used.
    pub server_certificate_failures: Counter,
    /// Connections from trusted proxies without a usable PROXY header.
    pub proxy_header_errors: Counter,
    /// Responses by status code, refused handshakes included.
    pub responses: Count<StatusLabel>,
    /// OpAMP messages received.
    pub messages_received: Count<TransportLabel>,
    /// OpAMP messages sent.
    pub messages_sent: Count<TransportLabel>,
    /// Bytes received: of WebSockets all, of HTTP the bodies as they came.
    pub bytes_received: Count<TransportLabel>,
    /// Bytes sent: of WebSockets all, of HTTP the bodies.
    pub bytes_sent: Count<TransportLabel>,
    /// Broken rules, by row of the conformance matrix.
    pub violations: Count<RuleLabel>,
    /// Ended WebSockets, by what ended them.
    pub closes: Count<CloseLabel>,
    /// HTTP connections dropped because no request came in time, or not all of it.
    pub timeouts: Counter,
    /// `OpAMP-Instance-UID` headers that are not the uid of the message (AMB-16).
    pub uid_header_mismatches: Counter,
    /// Connections that could not be accepted, mostly for want of descriptors.
    pub accept_errors: Counter,
}

/// By transport.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct TransportLabel {
    transport: Transport,
}

/// By outcome of a handshake.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct HandshakeLabel {
    outcome: HandshakeOutcome,
}

/// By outcome of a TLS handshake.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct TlsLabel {
    outcome: TlsOutcome,
}

/// By status code.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct StatusLabel {
    code: u16,
}

/// By broken rule.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct RuleLabel {
    rule: &'static str,
}

/// By what ended a WebSocket.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct CloseLabel {
    cause: &'static str,
}

/// What became of a request to open a WebSocket.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub enum HandshakeOutcome {
    /// 101.
    Opened,
    /// It is no handshake by RFC 6455.
    Malformed,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 429.
    TooManyFailures,
    /// 503: it could not be found out who it is.
    Unavailable,
    /// 503: too many connections.
    TooManyConnections,
    /// 503: too many handshakes wait.
    QueueFull,
    /// 503: too many WebSockets have not reported yet.
    TooManyUnreported,
    /// 503: the operator stops.
    Draining,
}

/// What became of a TLS handshake.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub enum TlsOutcome {
    /// Done, from the beginning.
    Full,
    /// Done, by the ticket of an earlier one.
    Resumed,
    /// The client's certificate does not count.
    CertificateRefused,
    /// The client gave up, mostly because the server's certificate does not count with it.
    RefusedByPeer,
    /// The client speaks only what is too old or too weak.
    Incompatible,
    /// HTTP in plain text.
    PlainHttp,
    /// It is no TLS, or breaks its rules.
    Malformed,
    /// It was not finished in time.
    TooSlow,
    /// The connection ended before.
    Lost,
    /// A fault of the operator: its settings could not be made.
    Unprepared,
}

impl EncodeLabelValue for Transport {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(
            &match self {
                Self::WebSocket => "websocket",
                Self::Http => "http",
            },
            encoder,
        )
    }
}

impl Metrics {
    /// Fresh families, shown by `registry` with the prefix `opamp_operator_`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("opamp_operator");
        registry.register("connections", "Open connections", metrics.connections.clone());
        registry.register(
            "handshakes_waiting",
            "WebSocket handshakes that wait for their turn",
            metrics.handshakes_waiting.clone(),
        );
        registry.register("handshakes", "WebSocket handshakes by outcome", metrics.handshakes.clone());
        metrics.register_tls(registry);
        registry.register("http_responses", "HTTP responses by status code", metrics.responses.clone());
        registry.register("messages_received", "OpAMP messages received", metrics.messages_received.clone());
        registry.register("messages_sent", "OpAMP messages sent", metrics.messages_sent.clone());
        registry.register("received_bytes", "Bytes received from agents", metrics.bytes_received.clone());
        registry.register("sent_bytes", "Bytes sent to agents", metrics.bytes_sent.clone());
        registry.register("violations", "Protocol violations by broken rule", metrics.violations.clone());
        registry.register("websocket_closes", "Ended WebSockets by cause", metrics.closes.clone());
        registry.register("http_timeouts", "HTTP connections dropped for silence", metrics.timeouts.clone());
        registry.register(
            "uid_header_mismatches",
            "OpAMP-Instance-UID headers unlike the instance_uid of the message",
            metrics.uid_header_mismatches.clone(),
        );
        registry.register("accept_errors", "Connections that could not be accepted", metrics.accept_errors.clone());
        metrics
    }

    fn register_tls(&self, registry: &mut Registry) {
        registry.register(
            "tls_handshakes_open",
            "TLS handshakes that are not finished",
            self.tls_handshakes_open.clone(),
        );
        registry.register("tls_handshakes", "TLS handshakes by outcome", self.tls_handshakes.clone());
        registry.register("listener_tls", "1 if agents are served with TLS", self.listener_tls.clone());
        registry.register(
            "server_certificate_not_after_seconds",
            "When the certificate of the listener expires, in seconds since 1970",
            self.server_certificate_not_after.clone(),
        );
        registry.register(
            "server_certificate_failures",
            "Certificates for the listener that could not be used",
            self.server_certificate_failures.clone(),
        );
        registry.register(
            "proxy_header_errors",
            "Connections from trusted proxies without a usable PROXY header",
            self.proxy_header_errors.clone(),
        );
    }

    /// Counts a connection for as long as the result lives.
    pub(super) fn open(&self, transport: Transport) -> Open {
        let gauge = self.connections.get_or_create_owned(&TransportLabel { transport });
        gauge.inc();
        Open(gauge)
    }

    /// Counts a handshake that waits, for as long as the result lives.
    pub(super) fn wait(&self) -> Open {
        self.handshakes_waiting.inc();
        Open(self.handshakes_waiting.clone())
    }

    /// Counts a TLS handshake that is not finished, for as long as the result lives.
    pub(super) fn shake_hands(&self) -> Open {
        self.tls_handshakes_open.inc();
        Open(self.tls_handshakes_open.clone())
    }

    pub(super) fn shook_hands(&self, outcome: TlsOutcome) {
        self.tls_handshakes.get_or_create(&TlsLabel { outcome }).inc();
    }

    /// How many TLS handshakes have ended so.
    #[cfg(test)]
    pub(super) fn tls_ended(&self, outcome: TlsOutcome) -> u64 {
        self.tls_handshakes.get_or_create(&TlsLabel { outcome }).get()
    }

    pub(super) fn handshake(&self, outcome: HandshakeOutcome) {
        self.handshakes.get_or_create(&HandshakeLabel { outcome }).inc();
    }

    pub(super) fn responded(&self, code: u16) {
        self.responses.get_or_create(&StatusLabel { code }).inc();
    }

    pub(super) fn message_received(&self, transport: Transport) {
        self.messages_received.get_or_create(&TransportLabel { transport }).inc();
    }

    pub(super) fn message_sent(&self, transport: Transport) {
        self.messages_sent.get_or_create(&TransportLabel { transport }).inc();
    }

    pub(super) fn received(&self, transport: Transport, bytes: usize) {
        self.bytes_received.get_or_create(&TransportLabel { transport }).inc_by(bytes as u64);
    }

    pub(super) fn sent(&self, transport: Transport, bytes: usize) {
        self.bytes_sent.get_or_create(&TransportLabel { transport }).inc_by(bytes as u64);
    }

    pub(super) fn violated(&self, rule: &'static str) {
        self.violations.get_or_create(&RuleLabel { rule }).inc();
    }

    pub(super) fn closed(&self, cause: &'static str) {
        self.closes.get_or_create(&CloseLabel { cause }).inc();
    }
}

/// One more in a gauge, until dropped.
#[derive(Debug)]
pub(super) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn families_appear_with_prefix_and_labels() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let open = metrics.open(Transport::WebSocket);
        metrics.handshake(HandshakeOutcome::QueueFull);
        metrics.violated("WS-03");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "opamp_operator_connections{transport=\"websocket\"} 1",
            "opamp_operator_handshakes_total{outcome=\"QueueFull\"} 1",
            "opamp_operator_violations_total{rule=\"WS-03\"} 1",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        drop(open);
        text.clear();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("opamp_operator_connections{transport=\"websocket\"} 0"), "{text}");
    }
}
