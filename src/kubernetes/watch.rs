//! Watches: all opened in one way, told of when they break and when they are back, and never older than they say.

use std::{fmt::Debug, pin::Pin, task};

use futures::{StreamExt as _, stream::BoxStream};
use http::{Request, Response};
use kube::{
    Api, Client, Config,
    client::{Body, ClientBuilder},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tower::{Layer, Service};

use super::{QuickBackoff, WatchAges, client::configure_for_watches, failure::describe_watch, watch_ages::Scene};

/// A client for watches, which notices a server that has fallen silent. Clones share their connections and ages.
#[derive(Clone)]
pub struct WatchClient {
    client: Client,
    ages: WatchAges,
}

impl From<Client> for WatchClient {
    /// Over a client of any kind, whose watches have no age.
    fn from(client: Client) -> Self {
        Self { client, ages: WatchAges::default() }
    }
}

impl WatchClient {
    /// A client with the time limits that suit watches.
    pub fn new(config: &Config) -> Result<Self, kube::Error> {
        let ages = WatchAges::default();
        let builder = ClientBuilder::try_from(configure_for_watches(config))?;
        let client = builder.with_layer(&Listening { ages: ages.clone() }).build();
        Ok(Self { client, ages })
    }

    /// The client, for reads that belong to a watch, and to make what [`Self::watch`] takes.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How long ago each watch was last heard of.
    #[must_use]
    pub fn ages(&self) -> &WatchAges {
        &self.ages
    }

    /// Watches until the stream is dropped; `None` stands for an outage, after which the watch is tried again. An outage
    /// is told of twice in the log, and not at each attempt. `api` is to be of this client.
    #[must_use]
    pub fn watch<K>(&self, api: Api<K>, config: watcher::Config) -> BoxStream<'static, Option<Event<K>>>
    where
        K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let open = self.ages.open(Scene::new(api.resource_url(), &config));
        let mut health = Health::Well;
        watcher(api, config)
            .backoff(QuickBackoff::default())
            .map(move |event| {
                health = health.after(open.path(), &event);
                event.ok()
            })
            .boxed()
    }
}

/// Whether a watch works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Health {
    Well,
    Broken,
}

impl Health {
    fn after<K>(self, path: &str, event: &Result<Event<K>, watcher::Error>) -> Self {
        match (self, event) {
            (Self::Well, Err(error)) => {
                tracing::warn!(path, error = describe_watch(error), "a watch is broken, and tried again");
                Self::Broken
            }
            (Self::Broken, Ok(Event::InitApply(_) | Event::InitDone | Event::Apply(_) | Event::Delete(_))) => {
                tracing::info!(path, "a watch is back");
                Self::Well
            }
            // `Init` comes before the server was asked, and tells nothing.
            (Self::Broken, Ok(Event::Init) | Err(_)) | (Self::Well, Ok(_)) => self,
        }
    }
}

/// Notes each watch that the server opens: kube's watcher keeps to itself when it has to open one anew.
struct Listening {
    ages: WatchAges,
}

impl<S> Layer<S> for Listening {
    type Service = ListeningService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ListeningService { inner, ages: self.ages.clone() }
    }
}

struct ListeningService<S> {
    inner: S,
    ages: WatchAges,
}

impl<S, B> Service<Request<Body>> for ListeningService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let scene = Scene::wanted(request.uri());
        let ages = self.ages.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(scene) = scene.filter(|_| answer.status().is_success()) {
                ages.heard(&scene);
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use http::StatusCode;
    use tokio::time::advance;

    use super::*;

    const SELECTORS: &str =
        "resourceVersion=7&labelSelector=a+in+%28b%2C+c%29&fieldSelector=type%3Dopamp.dev%2Fenrollment-token";

    #[tokio::test(start_paused = true)]
    async fn only_a_watch_that_the_server_has_opened_is_heard_of() {
        let ages = WatchAges::default();
        let tokens = watcher::Config::default().fields("type=opamp.dev/enrollment-token").labels("a in (b, c)");
        let _open = ages.open(Scene::new("/api/v1/secrets", &tokens));
        let layer = Listening { ages: ages.clone() };
        for (query, code, is_heard) in [
            ("limit=500", 200, false),
            (&*format!("{SELECTORS}&watch=true"), 503, false),
            (&*format!("{SELECTORS}&unwatch=true"), 200, false),
            ("resourceVersion=7&watch=true", 200, false),
            ("fieldSelector=type%3Dopamp.dev%2Fother&watch=true", 200, false),
            (&*format!("{SELECTORS}&watch=true"), 200, true),
        ] {
            advance(Duration::from_secs(9)).await;
            let mut service = layer.layer(tower::service_fn(|_| async move {
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::from_u16(code).expect("a code");
                Ok::<_, Infallible>(response)
            }));
            let request = Request::get(format!("/api/v1/secrets?{query}")).body(Body::empty()).expect("a request");
            service.call(request).await.expect("an answer");
            assert_eq!(ages.oldest()["secrets"].is_zero(), is_heard, "{query}, {code}");
        }
    }
}
