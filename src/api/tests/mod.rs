//! What holds for all kinds together: the generated definitions are well-formed, documented, and up to date; their
//! rules refuse what they should in the words that they should.

mod generated;
mod reference;
mod rules;
mod schema;
