//! What the server tells of the module: docs, key specs, ACL, options, INFO; and what it keeps to itself: tokens.

#[path = "../harness/mod.rs"]
mod harness;

mod acl;
mod docs;
mod observed;
mod options;
