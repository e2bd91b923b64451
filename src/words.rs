//! Replies of the protocol, written to the connection of a command.

use dlock_protocol::reply::Sink;

use crate::ffi::Ctx;

impl Sink for Ctx<'_> {
    #[inline]
    fn int(&mut self, number: i64) {
        self.reply_int(number);
    }

    fn null(&mut self) {
        self.reply_null();
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.reply_bytes(bytes);
    }

    fn array(&mut self, len: usize) {
        self.reply_array(len);
    }

    fn map(&mut self, len: usize) {
        self.reply_map(len);
    }
}
