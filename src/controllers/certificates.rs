//! Has certificates given out while this replica leads, and tells [`crate::credentials`] what it must know of agents and
//! fleets.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Context,
    roll::{Called, Shown, call},
};
use crate::credentials::{registrar::Registrar, roll::Roll};

/// Changes of agents that come together are one roll. Short, for one of them may be a revocation.
const TOGETHER: Duration = Duration::from_millis(200);
/// When the roll is called again although nothing has changed.
const ROUND: Duration = Duration::from_secs(60);

/// Who gives them out.
pub(super) fn registrar(context: &Context) -> Registrar {
    let (client, metrics) = (context.client.clone(), context.certificate_metrics.clone());
    let (certificates, trust) = (context.certificates.clone(), context.trust.clone());
    Registrar::new(client, certificates, trust, context.registrar.clone(), metrics)
}

/// Gives out certificates until the future is dropped.
pub(super) async fn run(context: &Context, registrar: Registrar) {
    let (sender, receiver) = watch::channel(None);
    tokio::join!(registrar.run(context.watch_client.clone(), receiver), keep_calling(context, sender));
}

/// Calls the roll anew whenever something has changed.
async fn keep_calling(context: &Context, sender: watch::Sender<Option<Arc<Roll>>>) {
    context.agents.synced().await;
    // The loader lives as long as the process, so that waiting cannot fail.
    let _ = context.catalog.synced().wait_for(|synced| *synced).await;
    let (mut agents, mut fleets) = (context.agents.generation(), context.catalog.generation());
    let mut certificates = context.certificates.changed();
    loop {
        agents.mark_unchanged();
        fleets.mark_unchanged();
        certificates.mark_unchanged();
        let now = Timestamp::now();
        let shown = Shown {
            agents: &context.agents.all(),
            catalog: &context.catalog.load(),
            certificates: &context.certificates,
            departures: &context.agents.departures(),
            operator_namespace: &context.namespace,
        };
        let Called { roll, until } = call(shown, now);
        sender.send_if_modified(|former| {
            let is_news = former.as_deref() != Some(&roll);
            if is_news {
                *former = Some(Arc::new(roll));
            }
            is_news
        });
        let holds_for = until.and_then(|until| Duration::try_from(until.duration_since(now)).ok()).unwrap_or(ROUND);
        let change = async {
            tokio::select! {
                Ok(()) = agents.changed() => {}
                Ok(()) = fleets.changed() => {}
                Ok(()) = certificates.changed() => {}
            }
        };
        // Without a change the roll is called when it no longer holds.
        let _ = timeout(holds_for.min(ROUND), change).await;
        sleep(TOGETHER).await;
    }
}
