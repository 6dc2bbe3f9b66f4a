//! Failures of the API server in words that quote no object.

use std::error::Error;

use kube::{core::Status, runtime::watcher};

/// Puts a failure into words for a log or a condition.
///
/// `kube::Error` must not be shown as it is: the message of a 422 quotes the whole object that did not fit, and a
/// decoding error the value at which it stopped; either may be a Secret's. What remains is the code, the reason, and
/// the fields that were at fault.
#[must_use]
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => describe_status(status),
        kube::Error::SerdeError(error) => {
            format!("the answer could not be decoded at line {}, column {}", error.line(), error.column())
        }
        kube::Error::HyperError(error) => format!("connection failed: {}", chain(error)),
        kube::Error::Service(error) => format!("request failed: {}", chain(error.as_ref())),
        kube::Error::ReadEvents(error) => format!("the watch broke off: {}", chain(error)),
        kube::Error::Auth(_) => "the credentials for the API server could not be had".into(),
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => "the request could not be built".into(),
        kube::Error::InferConfig(_) | kube::Error::InferKubeconfig(_) => {
            "the configuration of the cluster could not be read".into()
        }
        // The foreign enum has more variants by feature; none of them can be told of without its text.
        _ => "the API server could not be asked".into(),
    }
}

/// As [`describe`], for an error in a stream of events.
pub(super) fn describe_watch(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => format!("list: {}", describe(error)),
        watcher::Error::WatchStartFailed(error) => format!("start of the watch: {}", describe(error)),
        watcher::Error::WatchFailed(error) => format!("watch: {}", describe(error)),
        watcher::Error::WatchError(status) => format!("watch: {}", describe_status(status)),
        watcher::Error::NoResourceVersion => "the list came without resourceVersion".into(),
    }
}

fn describe_status(status: &Status) -> String {
    let reason = if status.reason.is_empty() { "no reason given" } else { &status.reason };
    let fields: Vec<&str> = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .map(|cause| cause.field.as_str())
        .filter(|field| !field.is_empty())
        .collect();
    if fields.is_empty() {
        format!("{} {reason}", status.code)
    } else {
        format!("{} {reason} at {}", status.code, fields.join(", "))
    }
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    #[test]
    fn the_text_of_a_refusal_quotes_no_object() {
        let cause =
            StatusCause { reason: "FieldValueInvalid".into(), message: "canary".into(), field: "data.key".into() };
        let details = StatusDetails {
            name: "x".into(),
            group: String::new(),
            kind: "Secret".into(),
            uid: String::new(),
            causes: vec![cause],
            retry_after_seconds: 0,
        };
        let status = Status::failure("Secret \"x\" is invalid: canary", "Invalid").with_code(422).with_details(details);
        assert_eq!(describe(&kube::Error::Api(status.boxed())), "422 Invalid at data.key");
    }

    #[test]
    fn a_decoding_error_does_not_quote_the_value() {
        let error = serde_json::from_str::<u8>("\n \"canary\"").expect_err("no number");
        assert!(error.to_string().contains("canary"), "serde_json quotes it");
        assert_eq!(describe(&kube::Error::SerdeError(error)), "the answer could not be decoded at line 2, column 9");
    }

    #[test]
    fn a_refused_connection_is_told_with_its_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(describe(&kube::Error::Service(Box::new(refused))), "request failed: connection refused");
    }
}
