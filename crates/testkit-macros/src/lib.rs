//! `#[each_server]`, which `dlock-testkit` exports. A procedural macro must be in a crate of its own.

#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes a function that takes a `&ServerKind` a test that runs once on each installed server.
///
/// ```ignore
/// #[each_server]
/// fn release_frees_the_lock(kind: &ServerKind) {
///     let server = Server::start(kind);
///     ..
/// }
/// ```
///
/// - `#[each_server]` runs it on all servers at the same time.
/// - `#[each_server(in_turn)]` runs it on one server after the other: for a test that keeps the machine busy.
/// - `#[each_server(shimmed)]` is for a test that preloads a C library. It leaves out Valkey 9 and later,
///   where a module does not call a preloaded library.
///
/// An `async fn` runs in a tokio runtime of its own with two worker threads; the crate under test must depend
/// on tokio (`rt-multi-thread`). The failure names each server on which the test failed.
#[proc_macro_attribute]
pub fn each_server(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let runner = match arguments.to_string().as_str() {
        "" => "each_server",
        "in_turn" => "each_server_in_turn",
        "shimmed" => "each_shimmed_server",
        other => return error(&format!("each_server accepts in_turn or shimmed, not {other}")),
    };
    let (attributes, function) = split(item);
    let Some(name) = name(&function) else {
        return error("each_server needs a function");
    };
    let call = if is_async(&function) {
        format!(
            "::dlock_testkit::{runner}(|kind| {{
                let runtime = ::tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
                runtime.expect(\"a runtime\").block_on({name}(kind));
            }});"
        )
    } else {
        format!("::dlock_testkit::{runner}({name});")
    };
    // The original function is copied into the test, token by token, so compiler errors and panics point to
    // its source.
    let mut body = function;
    body.extend(parsed(&call));
    let mut test = parsed("#[::core::prelude::v1::test]");
    test.extend(attributes);
    test.extend(parsed(&format!("fn {name}()")));
    test.extend([TokenTree::from(Group::new(Delimiter::Brace, body))]);
    test
}

/// Splits the attributes in front of an item from the item.
fn split(item: TokenStream) -> (TokenStream, TokenStream) {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    // An attribute is two tokens: `#` and a group in brackets.
    let mut count = 0;
    while tokens.get(count).is_some_and(|token| token.to_string() == "#") {
        count += 2;
    }
    let function = tokens.split_off(count);
    (tokens.into_iter().collect(), function.into_iter().collect())
}

/// Returns the identifier behind `fn`.
fn name(function: &TokenStream) -> Option<String> {
    let mut tokens = function.clone().into_iter().skip_while(|token| token.to_string() != "fn");
    Some(tokens.nth(1)?.to_string())
}

fn is_async(function: &TokenStream) -> bool {
    function.clone().into_iter().next().is_some_and(|token| token.to_string() == "async")
}

fn error(message: &str) -> TokenStream {
    parsed(&format!("::core::compile_error!({message:?});"))
}

fn parsed(code: &str) -> TokenStream {
    code.parse().expect("the macro writes valid Rust")
}
