//! The status of RemoteConfigs; leader only.
