//! The documents, COMMAND DOCS and a running server agree on commands, rights, options and INFO. The links
//! and the example sessions of the documents work.

mod acl;
mod built;
mod docs;
mod info;
mod links;
mod options;
mod quorum_rules;
mod sessions;
mod several;
mod tables;
mod warnings;
