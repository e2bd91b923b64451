//! What the server tells of the module: docs, key specs, ACL, options, INFO; and what it keeps to itself:
//! tokens.

mod acl;
mod built;
mod docs;
mod links;
mod observed;
mod options;
mod sessions;
mod tables;
mod warnings;
