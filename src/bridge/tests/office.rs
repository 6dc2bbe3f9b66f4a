//! Where requests for certificates go in tests, and who answers them.

use std::sync::Mutex;

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use kube::runtime::watcher::Event;

use crate::{
    bridge::{Application, RequestDesk},
    credentials::{
        certificates::Certificates,
        requests::{AskError, Asked},
    },
};

/// Takes requests, and shows their Secrets to this replica as the real desk does.
pub(super) struct Office {
    certificates: Certificates,
    pub(super) asked: Mutex<Vec<Application>>,
    faults: Mutex<Vec<AskError>>,
}

impl Office {
    pub(super) fn of(certificates: &Certificates) -> Self {
        Self { certificates: certificates.clone(), asked: Mutex::default(), faults: Mutex::default() }
    }

    /// The next requests fail like this, the last first.
    pub(super) fn fail(&self, faults: Vec<AskError>) {
        *self.faults.lock().expect("unbroken") = faults;
    }

    /// How many requests were taken.
    pub(super) fn taken(&self) -> usize {
        self.asked.lock().expect("unbroken").len()
    }

    /// The last request that was taken.
    pub(super) fn last(&self) -> Application {
        self.asked.lock().expect("unbroken").last().expect("a request").clone()
    }
}

impl RequestDesk for Office {
    fn ask<'a>(&'a self, application: &'a Application, _now: Timestamp) -> BoxFuture<'a, Result<Asked, AskError>> {
        async move {
            if let Some(fault) = self.faults.lock().expect("unbroken").pop() {
                return Err(fault);
            }
            self.asked.lock().expect("unbroken").push(application.clone());
            self.certificates.take(&None, Event::Apply(application.holder.request(&application.request)));
            Ok(Asked::Waits)
        }
        .boxed()
    }
}
