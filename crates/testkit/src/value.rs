//! Replies, in a form that keeps assertions short.

use std::fmt;

/// A reply. Compares with numbers and texts: `assert_eq!(conn.call(&["GET", "a"]), "b")`.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// Null of RESP2 (bulk or array) and of RESP3.
    Nil,
    Int(i64),
    Simple(String),
    Bulk(Vec<u8>),
    /// The error line without its dash. It begins with the error word, such as `ERR`.
    Error(String),
    /// An array, or a set of RESP3.
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// Out-of-band data of RESP3: Pub/Sub messages, invalidations.
    Push(Vec<Value>),
    Double(f64),
    Bool(bool),
    Verbatim(String),
}

impl Value {
    pub fn is_nil(&self) -> bool {
        *self == Value::Nil
    }

    /// Returns the number. Panics on any other reply.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Value::Int(number) => *number,
            other => panic!("expected a number, got {other:?}"),
        }
    }

    /// Returns the text of a simple, bulk or verbatim string. Panics on any other reply.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap_or_else(|_| panic!("expected text, got {self:?}"))
    }

    /// Returns the bytes of a simple, bulk or verbatim string. Panics on any other reply.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        self.string().unwrap_or_else(|| panic!("expected a string, got {self:?}"))
    }

    /// Returns the error's line. Panics on any other reply.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Value::Error(line) => line,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// Returns the elements of an array or a push. Panics on any other reply.
    #[track_caller]
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// Returns the value named `name` of a map, or of an array of alternating names and values (a map in
    /// RESP2).
    #[track_caller]
    pub fn field(&self, name: &str) -> &Value {
        let found = match self {
            Value::Map(pairs) => pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value),
            Value::Array(items) => items.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1]),
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no field {name:?} in {self:?}"))
    }

    fn string(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(text) | Value::Verbatim(text) => Some(text.as_bytes()),
            Value::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Nil => write!(f, "nil"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Simple(text) => write!(f, "+{text}"),
            Value::Error(line) => write!(f, "-{line}"),
            Value::Bulk(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => write!(f, "{text:?}"),
                Err(_) => write!(f, "b\"{}\"", bytes.escape_ascii()),
            },
            Value::Verbatim(text) => write!(f, "{text:?}"),
            Value::Double(number) => write!(f, "{number:?}"),
            Value::Bool(flag) => write!(f, "{flag}"),
            Value::Array(items) => f.debug_list().entries(items).finish(),
            Value::Push(items) => {
                write!(f, "push ")?;
                f.debug_list().entries(items).finish()
            }
            Value::Map(pairs) => {
                f.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish()
            }
        }
    }
}

impl PartialEq<i64> for Value {
    fn eq(&self, other: &i64) -> bool {
        matches!(self, Value::Int(number) if number == other)
    }
}

/// True for any string with this text, but not for an error. Compare the text of an error by
/// [`Value::error`].
impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        self.string() == Some(other.as_bytes())
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, other: &String) -> bool {
        self == other.as_str()
    }
}

/// True for an array or a push with these elements.
impl<T, const N: usize> PartialEq<[T; N]> for Value
where
    Value: PartialEq<T>,
{
    fn eq(&self, other: &[T; N]) -> bool {
        match self {
            Value::Array(items) | Value::Push(items) => {
                items.len() == N && items.iter().zip(other).all(|(item, wanted)| item == wanted)
            }
            _ => false,
        }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Bulk(text.as_bytes().to_vec())
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}
