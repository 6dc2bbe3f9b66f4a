//! Every limit and rate of the listener, in one place.

use std::time::Duration;

/// What a listener takes. Each default is chosen for one replica with 10,000 agents, about 512 MiB of memory and peers
/// that may be hostile.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Open connections of any kind. Default 15,000: the 10,000 agents of one replica and half as many again that come
    /// over from a replica that went away. What comes on top gets 503. Lowered to what the descriptor limit allows.
    pub connections: usize,
    /// WebSocket handshakes a second. Default 1,000: an agent that connects costs a full report and a status patch, so
    /// 10,000 agents that return together are spread over 10 s; opamp-go clients wait longer than that for their 101.
    pub handshakes_per_second: u32,
    /// Handshakes that wait for their turn. Default 10,000: what [`Self::handshakes_per_second`] serves in
    /// [`Self::handshake_wait`]. What comes on top gets 503 and `Retry-After`.
    pub handshake_queue: usize,
    /// How long a handshake waits for its turn. Default 10 s: common clients give up a handshake after 30 s or more.
    pub handshake_wait: Duration,
    /// WebSockets that were opened and have not reported yet. Default 2,000: two seconds of
    /// [`Self::handshakes_per_second`]; honest agents report within a round trip (CONN-02), so only idle sockets fill it.
    pub unreported: usize,
    /// How long such a WebSocket may take to report. Default 30 s: the interval at which agents report anyway.
    pub report_timeout: Duration,
    /// How long the handshake of TLS may take, from the acceptance of the connection. Default 10 s, as for the head of a
    /// request: it is three round trips at most, and whoever is slower keeps one of [`Self::connections`].
    pub tls_timeout: Duration,
    /// How long the head of a request may take from its first byte, and the first byte of a connection. Default 10 s: a
    /// round trip to the far side of the world, several times repeated.
    pub head_timeout: Duration,
    /// How long it may take to find out who somebody is. Default 5 s: the API server, which may have to be asked, answers
    /// within 2 s even when it is slow; whoever came is to hear 503 before it gives up by itself.
    pub authentication_timeout: Duration,
    /// How long the body of a request, or a WebSocket message, may take from its first byte to its last. Default 60 s: the
    /// largest message over a line of 0.6 Mbit/s.
    pub body_timeout: Duration,
    /// How long a connection may idle between requests. Default 120 s: agents poll every 30 s by default (HTTP-04), and
    /// some every minute; closing just when the next poll is on its way shows as an error in their logs.
    pub keep_alive: Duration,
    /// Bytes of one message, after decompression, and before it as well. Default 4 MiB: a hundred times a usual full
    /// report, and still only about 120 MB if a hostile sender makes each two bytes an element of a repeated field. The
    /// specification's main branch names 64 MiB (AMB-22).
    pub message_bytes: usize,
    /// Bytes of all unfinished messages together, beyond the first 16 KiB of each: those that arrive, those that are
    /// decompressed, and compressed responses on their way. Default 128 MiB: 32 messages of the largest size; further
    /// ones wait, over HTTP they get 503 and responses are not compressed. Never less than one message.
    pub unfinished_bytes: usize,
    /// Messages a second from one connection, requests that are turned away included. Default 500, which costs about a
    /// hundredth of a core; the rest waits in the peer's socket. A message counts once more for each 4 KiB that it has.
    pub messages_per_second: u32,
    /// Messages that a connection may send at once beyond its rate. Default 2,000: a gateway with 1,000 agents sends two
    /// each, a report and a status, when a configuration changes.
    pub message_burst: u32,
    /// Silence after which a WebSocket is pinged. Default 30 s: below the idle timeouts of the usual proxies and load
    /// balancers (60 s and more), so that the pings also keep a silent agent's connection open.
    pub ping_after: Duration,
    /// How long the answer to that ping may take. Default 20 s: several TCP retransmissions.
    pub pong_timeout: Duration,
    /// How long a peer may read nothing of what it is sent. Default 10 s: it then has a full receive window and does
    /// not drain it; its answers would be out of date. The whole of an HTTP response has [`Self::keep_alive`].
    pub write_timeout: Duration,
    /// How long the peer's Close frame is awaited. Default 3 s: a round trip, and opamp-go itself waits 5 s.
    pub close_timeout: Duration,
    /// WebSockets closed a second when draining. Default 500: half of what the other replicas take as handshakes. More, if
    /// they would not all be closed in the time there is.
    pub drains_per_second: u32,
    /// The least value of `Retry-After`. Default 30 s, the least interval that the specification recommends (THR-05).
    pub retry_after: Duration,
    /// Up to how much is added to `Retry-After` at random, so that those refused together do not return together.
    /// Default 30 s: 10,000 agents then return at 333/s.
    pub retry_jitter: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 15_000,
            handshakes_per_second: 1_000,
            handshake_queue: 10_000,
            handshake_wait: Duration::from_secs(10),
            unreported: 2_000,
            report_timeout: Duration::from_secs(30),
            tls_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(10),
            authentication_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(120),
            message_bytes: 4 << 20,
            unfinished_bytes: 128 << 20,
            messages_per_second: 500,
            message_burst: 2_000,
            ping_after: Duration::from_secs(30),
            pong_timeout: Duration::from_secs(20),
            write_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(3),
            drains_per_second: 500,
            retry_after: Duration::from_secs(30),
            retry_jitter: Duration::from_secs(30),
        }
    }
}
