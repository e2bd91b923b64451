//! Descriptions of commands for COMMAND DOCS, COMMAND INFO and the hints of redis-cli.

use std::ffi::c_int;

use super::ctx::Ctx;
use super::raw::{api, c_string, never_freed, rm};

/// One argument, or a group of them.
pub enum Arg {
    Key(&'static str),
    Text(&'static str),
    Number(&'static str),
    /// A keyword.
    Word(&'static str),
    /// A keyword and a value.
    WordText(&'static str, &'static str),
    WordNumber(&'static str, &'static str),
    OneOf(&'static str, &'static [Arg]),
    /// All of these, in this order.
    Block(&'static str, &'static [Arg]),
    /// An optional argument.
    Optional(&'static Arg),
    /// Zero or more of these.
    Several(&'static str),
}

/// The use that a command makes of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    None,
    Read,
    /// Creates, changes or deletes the key.
    Change,
    /// Like `Read`; the keys of a carried command come in addition: see [`super::inner`].
    ReadAndMore,
    ChangeAndMore,
}

impl KeyUse {
    pub(super) fn flags(self) -> u32 {
        match self {
            KeyUse::None => 0,
            KeyUse::Read | KeyUse::ReadAndMore => rm::REDISMODULE_CMD_KEY_RO | rm::REDISMODULE_CMD_KEY_ACCESS,
            KeyUse::Change | KeyUse::ChangeAndMore => {
                rm::REDISMODULE_CMD_KEY_RW | rm::REDISMODULE_CMD_KEY_ACCESS | rm::REDISMODULE_CMD_KEY_UPDATE
            }
        }
    }
}

pub struct Description {
    pub name: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
    /// Counts the command's name. A negative number means "at least".
    pub arity: i32,
    pub key: KeyUse,
    pub args: &'static [Arg],
}

/// Registers a description. Returns false if the server refuses it. The server keeps pointers to the tables,
/// so they are never freed.
pub fn describe(ctx: Ctx<'_>, description: &Description) -> bool {
    let version = Box::leak(Box::new(rm::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<rm::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<rm::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<rm::RedisModuleCommandArg>(),
    }));
    let info = rm::RedisModuleCommandInfo {
        version,
        summary: never_freed(description.summary),
        complexity: never_freed(description.complexity),
        since: c"0.1.0".as_ptr(),
        history: std::ptr::null_mut(),
        tips: std::ptr::null(),
        arity: description.arity as c_int,
        key_specs: key_specs(description.key),
        args: args(description.args),
    };
    let name = c_string(description.name);
    // SAFETY: called in OnLoad for a command that was registered; everything pointed to lives for ever.
    unsafe {
        let command = api!(RedisModule_GetCommand(ctx.0, name.as_ptr()));
        !command.is_null() && api!(RedisModule_SetCommandInfo(command, &info)) == rm::REDISMODULE_OK as c_int
    }
}

/// Returns the key specs, ended by zeros: the first argument is the key.
fn key_specs(key: KeyUse) -> *mut rm::RedisModuleCommandKeySpec {
    if key == KeyUse::None {
        return std::ptr::null_mut();
    }
    // SAFETY: plain C structures, for which zero bytes are valid and mean "none".
    let (mut spec, end) =
        unsafe { (std::mem::zeroed::<rm::RedisModuleCommandKeySpec>(), std::mem::zeroed()) };
    spec.flags = key.flags().into();
    if matches!(key, KeyUse::ReadAndMore | KeyUse::ChangeAndMore) {
        // Without this flag the server uses this table alone, and does not ask for the keys.
        spec.flags |= u64::from(rm::REDISMODULE_CMD_KEY_VARIABLE_FLAGS);
    }
    spec.begin_search_type = rm::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = rm::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range.lastkey = 0;
    spec.fk.range.keystep = 1;
    spec.fk.range.limit = 0;
    Box::leak(Box::new([spec, end])).as_mut_ptr()
}

/// Returns the arguments, ended by zeros.
fn args(list: &[Arg]) -> *mut rm::RedisModuleCommandArg {
    if list.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    let end = || unsafe { std::mem::zeroed::<rm::RedisModuleCommandArg>() };
    let all: Vec<_> = list.iter().map(arg).chain([end()]).collect();
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}

fn arg(arg: &Arg) -> rm::RedisModuleCommandArg {
    use rm::{
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER as INTEGER,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF as ONEOF,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN as PURE_TOKEN,
        RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
    };
    let (name, kind, word, sub): (&str, _, &str, &[Arg]) = match arg {
        Arg::Key(name) => (name, KEY, "", &[]),
        Arg::Text(name) | Arg::Several(name) => (name, STRING, "", &[]),
        Arg::Number(name) => (name, INTEGER, "", &[]),
        Arg::Word(word) => (word, PURE_TOKEN, word, &[]),
        Arg::WordText(word, name) => (name, STRING, word, &[]),
        Arg::WordNumber(word, name) => (name, INTEGER, word, &[]),
        Arg::OneOf(name, choices) => (name, ONEOF, "", choices),
        Arg::Block(name, parts) => (name, BLOCK, "", parts),
        Arg::Optional(inner) => {
            let mut made = self::arg(inner);
            made.flags |= rm::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
            return made;
        }
    };
    // SAFETY: as above.
    let mut made = unsafe { std::mem::zeroed::<rm::RedisModuleCommandArg>() };
    if matches!(arg, Arg::Several(_)) {
        made.flags = (rm::REDISMODULE_CMD_ARG_OPTIONAL | rm::REDISMODULE_CMD_ARG_MULTIPLE) as c_int;
    }
    made.name = never_freed(&name.to_lowercase());
    made.type_ = kind;
    made.key_spec_index = if kind == KEY { 0 } else { -1 };
    made.token = never_freed(word);
    made.subargs = args(sub);
    made
}
