//! Who speaks, as its credential says; an input of every session, never taken from what an agent says of itself.

use std::fmt;

/// An identity, compared whole. Its text form is what `Agent.status.connection.identity` shows.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Identity {
    /// No credential was shown.
    Anonymous,
}

impl Identity {
    /// Reads the text form; `None` if it is of no method that this version knows.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Anonymous].into_iter().find(|identity| identity.to_string() == text)
    }

    /// The name of the method in `enrollment.methods` and in `Agent.status.connection.method`.
    #[must_use]
    pub fn method(&self) -> &'static str {
        match self {
            Self::Anonymous => "Anonymous",
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("anonymous"),
        }
    }
}
