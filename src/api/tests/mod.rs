//! What holds for all kinds together: the generated definitions are well-formed, documented, and up to date; their
//! rules refuse what they should in the words that they should.

mod generated;
mod reference;
#[path = "../../../tests/integration/rule_table.rs"]
mod rule_table;
mod rules;
mod samples;
mod schema;
