//! The documents, COMMAND DOCS and a running server agree on commands, rights, options, INFO, links and
//! sessions.

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
