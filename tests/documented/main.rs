//! The documents, COMMAND DOCS and a running server agree on commands, rights, options, INFO, links and
//! sessions.

mod acl;
mod built;
mod docs;
mod info;
mod links;
mod options;
mod quorum_rules;
mod sessions;
mod tables;
mod warnings;
