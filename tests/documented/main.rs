//! What the server tells of the module: docs, key specs, ACL, options, INFO; and what it keeps to itself:
//! tokens.

mod acl;
mod built;
mod docs;
mod observed;
mod options;
mod readme;
mod warnings;
