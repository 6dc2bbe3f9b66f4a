//! From a request to its response.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
};

use bytes::{Buf, Bytes, buf::Chain};
use http::{HeaderMap, HeaderValue, Method, Request, header, request::Parts};
use http_body_util::Full;
use hyper::{Response, body::Incoming, service::Service};
use tokio::time::sleep_until;

use super::{
    super::{
        admission::Standing,
        connection::Transport,
        peer::Peer,
        proxies::{CertificateHeader, HeaderError, take_certificates},
        shared::{Shared, now},
        websocket::handshake,
    },
    body,
    coding::{self, Coding},
    connection::Progress,
    opening::Handshake,
    rejection::{Overload, Rejection},
};
use crate::opamp::{InstanceUid, session::Outbound};

/// The one media type of OpAMP messages (HTTP-06, HTTP-12).
const MEDIA_TYPE: &str = "application/x-protobuf";

/// The uid of the message once more, for proxies (HTTP-10).
const UID_HEADER: &str = "opamp-instance-uid";

/// A response; its body is what is an agent's own and what it shares with others.
pub type Reply = Response<Full<Chain<Bytes, Bytes>>>;

/// Answers the requests of one connection.
#[derive(Clone)]
pub struct Router {
    pub shared: Arc<Shared>,
    /// As the connection shows it.
    pub peer: Arc<Peer>,
    pub certificate_header: CertificateHeader,
    pub standing: Standing,
    pub progress: Arc<Progress>,
}

/// What a request wants.
#[derive(Debug)]
enum Route {
    /// To hand over a message.
    Message,
    /// To open a WebSocket, with this answer to its key.
    WebSocket(HeaderValue),
}

impl Service<Request<Incoming>> for Router {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.progress.begin();
        let router = self.clone();
        Box::pin(async move {
            let reply = router.answer(request).await;
            router.shared.metrics.responded(reply.status().as_u16());
            router.progress.finish(now().instant + router.shared.limits.keep_alive);
            Ok(reply)
        })
    }
}

impl Router {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (parts, body) = request.into_parts();
        let opens = parts.method == Method::GET && parts.headers.contains_key(header::UPGRADE);
        let outcome = self.serve(parts, body).await;
        outcome.unwrap_or_else(|rejection| {
            if opens {
                self.shared.metrics.handshake(rejection.outcome());
            }
            tracing::debug!(remote = %self.peer.address, status = rejection.status().as_u16(), %rejection, "request rejected");
            rejection.reply(self.shared.retry_after())
        })
    }

    /// Serves whoever may be served at all, at the pace of the connection.
    async fn serve(&self, mut parts: Parts, body: Incoming) -> Result<Reply, Rejection> {
        match self.standing {
            Standing::Regular => {}
            Standing::Surplus => return Err(Overload::Connections.into()),
        }
        if let Some(turn) = self.progress.pace(now().instant) {
            sleep_until(turn.into()).await;
        }
        let peer = self.peer(&mut parts.headers)?;
        match route(&parts, &self.shared.path)? {
            Route::Message => self.receive(&parts, &peer, body).await,
            Route::WebSocket(accept) => self.open(Box::new(parts), peer, accept).await,
        }
    }

    /// One message and its answer (HTTP-01, HTTP-02).
    async fn receive(&self, parts: &Parts, peer: &Peer, body: Incoming) -> Result<Reply, Rejection> {
        let principal = self.shared.authenticate(parts, peer).await?;
        let coding = coding::of_request(&parts.headers)?;
        let received = body::read(body, &self.shared).await?;
        let shared = &self.shared;
        shared.metrics.message_received(Transport::Http);
        shared.metrics.received(Transport::Http, received.len());
        let payload = match coding {
            Coding::Identity => received,
            Coding::Gzip => {
                coding::inflate(&received, shared.stored(shared.limits.message_bytes), &shared.coders).await?
            }
        };
        self.progress.charge(payload.len(), now().instant);
        let connection = shared.connection(Transport::Http, principal, peer);
        let exchange = shared.agents.receive(&connection, payload, now());
        if let Some(violation) = &exchange.violation {
            shared.metrics.violated(violation.rule());
        }
        if let Some(uid) = exchange.speaker
            && claims_another(&parts.headers, uid)
        {
            shared.metrics.uid_header_mismatches.inc();
        }
        let Some(outbound) = exchange.send.into_iter().next() else { return Err(Rejection::NoAnswer) };
        Ok(self.respond(outbound, coding::of_response(&parts.headers)).await)
    }

    async fn respond(&self, outbound: Outbound, coding: Coding) -> Reply {
        let Outbound { head, tail } = outbound;
        let tail = tail.unwrap_or_default();
        let compressed = match coding {
            Coding::Identity => None,
            // Where there is no room for it, plain bytes serve as well: what agents share is there already.
            Coding::Gzip => {
                let stored = self.shared.stored(usize::MAX);
                coding::deflate([&head, &tail], stored, &self.shared.coders).await.ok()
            }
        };
        let is_compressed = compressed.is_some();
        let body = compressed.unwrap_or(head).chain(if is_compressed { Bytes::new() } else { tail });
        self.shared.metrics.message_sent(Transport::Http);
        self.shared.metrics.sent(Transport::Http, body.remaining());
        let mut reply = Response::new(Full::new(body));
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if is_compressed {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        reply
    }

    /// Hands over the opening of a WebSocket: the connection is no longer the router's, and the request gets no reply from
    /// here.
    async fn open(&self, request: Box<Parts>, peer: Arc<Peer>, accept: HeaderValue) -> Result<Reply, Rejection> {
        self.progress.open(Handshake { accept, request, peer });
        pending().await
    }

    /// Who speaks in this request: behind a proxy, the next may be another's.
    fn peer(&self, headers: &mut HeaderMap) -> Result<Arc<Peer>, HeaderError> {
        let told = take_certificates(headers, self.certificate_header)?;
        Ok(match told {
            None => Arc::clone(&self.peer),
            Some(certificates) => Arc::new(Peer { certificates: Some(certificates), ..(*self.peer).clone() }),
        })
    }
}

/// A body of text.
pub fn text(text: String) -> Full<Chain<Bytes, Bytes>> {
    Full::new(Bytes::from(text).chain(Bytes::new()))
}

/// The `Content-Type` decides, even if the request also asks for an upgrade (AMB-20).
fn route(parts: &Parts, path: &str) -> Result<Route, Rejection> {
    let asked = parts.uri.path();
    if asked.strip_suffix('/').unwrap_or(asked) != path {
        return Err(Rejection::Path);
    }
    let has_type = is_protobuf(&parts.headers);
    match parts.method {
        Method::POST if has_type => Ok(Route::Message),
        Method::POST => Err(Rejection::MediaType),
        Method::GET if !has_type => Ok(Route::WebSocket(handshake::accept(parts)?)),
        _ => Err(Rejection::Method),
    }
}

/// Whether the media type is the one of OpAMP, in any case and with any parameters.
fn is_protobuf(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case(MEDIA_TYPE))
}

/// Whether the header is there and is not this uid (AMB-16).
fn claims_another(headers: &HeaderMap, uid: InstanceUid) -> bool {
    headers.get(UID_HEADER).is_some_and(|value| value.to_str().ok().and_then(InstanceUid::from_name) != Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_method_and_content_type_decide() {
        for (method, path, content_type, expected) in [
            ("POST", "/v1/opamp", Some("application/x-protobuf"), 200),
            ("POST", "/v1/opamp/", Some("application/x-protobuf"), 200),
            ("POST", "/v1/opamp?token=1", Some("Application/X-Protobuf; charset=utf-8"), 200),
            ("POST", "/v1/opamp//", Some("application/x-protobuf"), 404),
            ("POST", "/v1/opamps", Some("application/x-protobuf"), 404),
            ("POST", "/", Some("application/x-protobuf"), 404),
            ("POST", "/v1/opamp", Some("application/json"), 415),
            ("POST", "/v1/opamp", None, 415),
            ("GET", "/v1/opamp", Some("application/x-protobuf"), 405),
            ("PUT", "/v1/opamp", Some("application/x-protobuf"), 405),
            ("DELETE", "/v1/opamp", None, 405),
            ("GET", "/v1/opamp", None, 400),
        ] {
            let mut request = Request::builder().method(method).uri(path);
            if let Some(content_type) = content_type {
                request = request.header("Content-Type", content_type);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let status = route(&parts, "/v1/opamp").map_or_else(|rejection| rejection.status().as_u16(), |_| 200);
            assert_eq!(status, expected, "{method} {path} {content_type:?}");
        }
    }

    #[test]
    fn another_path_takes_the_place_of_the_default() {
        // TRN-02
        for (path, expected) in [("/x/y", true), ("/x/y/", true), ("/v1/opamp", false)] {
            let request = Request::post(path).header("Content-Type", MEDIA_TYPE).body(()).unwrap();
            assert_eq!(route(&request.into_parts().0, "/x/y").is_ok(), expected, "{path}");
        }
    }

    #[test]
    fn a_uid_header_is_compared_by_value() {
        let uid = InstanceUid::from_name("0190a0b0-c0d0-7000-8000-00000000abcd").unwrap();
        for (value, expected) in [
            ("0190a0b0-c0d0-7000-8000-00000000abcd", false),
            ("0190A0B0-C0D0-7000-8000-00000000ABCD", false),
            ("b0a09001-d0c0-0070-8000-00000000abcd", true),
            ("garbage", true),
        ] {
            let headers =
                HeaderMap::from_iter([(header::HeaderName::from_static(UID_HEADER), HeaderValue::from_static(value))]);
            assert_eq!(claims_another(&headers, uid), expected, "{value}");
        }
        assert!(!claims_another(&HeaderMap::new(), uid), "the header is optional");
    }
}
