//! The samples and the roles, applied as a person would.

use crate::harness::ControlPlane;

#[test]
fn every_sample_is_accepted_and_applying_it_again_changes_nothing() {
    // Never in a cluster of the user's: the samples' namespaces may be in use there.
    let cluster = ControlPlane::private();
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples");
    let roles = concat!(env!("CARGO_MANIFEST_DIR"), "/config/rbac");
    for folder in [samples, roles] {
        // Twice before the first look: who owns an object's fields is settled by its second apply, when the object has
        // no field besides its name, or when its kind is so new that the API server does not know its schema yet.
        cluster.kubectl(&["apply", "--server-side", "-f", folder], "");
        cluster.kubectl(&["apply", "--server-side", "-f", folder], "");
        let versions = ["get", "-f", folder, "-o", "jsonpath={range .items[*]}{.metadata.resourceVersion} {end}"];
        let before = cluster.kubectl(&versions, "");
        cluster.kubectl(&["apply", "--server-side", "-f", folder], "");
        assert_eq!(cluster.kubectl(&versions, ""), before, "{folder}");
    }
}
