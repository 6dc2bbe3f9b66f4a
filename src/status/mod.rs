//! Agent record → `Agent.status`, written within the API server's budget.
