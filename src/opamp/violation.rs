//! What a peer did wrong.

/// One variant a rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// WS-01, AMB-19.
    #[error("OpAMP messages are binary, this was a text message")]
    TextFrame,
    /// WS-03.
    #[error("the header is not 0")]
    Header,
}

impl Violation {
    /// The metric label.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::TextFrame => "WS-01",
            Self::Header => "WS-03",
        }
    }
}
