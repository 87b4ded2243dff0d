//! The rules for coordinators, checked with the coordinator inside the process.

use roiflow_nodes::{Coordinator, Local, suite};

/// Runs a test of the suite on a coordinator of its own.
fn on_local(test: fn(suite::Client<'_>)) {
    let local = Local::new();
    test(&|| Box::new(local.client()) as Box<dyn Coordinator>);
}

#[test]
fn writes_need_the_expected_revision_and_deleted_keys_can_be_created() {
    on_local(suite::writes_need_the_expected_revision_and_deleted_keys_can_be_created);
}

#[test]
fn watch_reports_items_changes_and_the_end_of_a_time_to_live() {
    on_local(suite::watch_reports_items_changes_and_the_end_of_a_time_to_live);
}

#[test]
fn watch_reports_only_its_keys() {
    on_local(suite::watch_reports_only_its_keys);
}

#[test]
fn only_one_of_several_writers_replaces_a_revision() {
    on_local(suite::only_one_of_several_writers_replaces_a_revision);
}

#[test]
fn each_request_gets_one_reply() {
    on_local(suite::each_request_gets_one_reply);
}

#[test]
fn waker_ends_a_wait() {
    on_local(suite::waker_ends_a_wait);
}
