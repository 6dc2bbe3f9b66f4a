//! The fleet's controller: plan, apply, counters, conditions; leader only.
