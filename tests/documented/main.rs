//! The server's view of the module: documentation, key specs, ACL, options, INFO, and no tokens.

mod acl;
mod built;
mod docs;
mod links;
mod observed;
mod options;
mod quorum_rules;
mod sessions;
mod tables;
mod warnings;
