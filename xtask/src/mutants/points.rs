//! Finds the places of a source file where a small change of the code is possible, and writes each such change as an edit of the
//! text.
//!
//! Code is skipped that runs before a switch can be read, or that tests cannot observe: `const` code, attributes, macros
//! (including assertions and formatting), test code, code excluded by this configuration, and `Debug`/`Display`.

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use std::ops::Range;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, Lit, Meta, ReturnType, Stmt, Token, Type, UnOp};

/// A place in a file, with one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// The range of the text that the switch surrounds, in bytes.
    pub(crate) outer: Range<usize>,
    /// The change: the range to replace, and the new text.
    pub(crate) edit: (Range<usize>, String),
    pub(crate) form: Form,
    /// The enclosing function.
    pub(crate) function: String,
    /// The line, from 1.
    pub(crate) line: usize,
}

/// The form of a switch around a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Chooses between the changed expression and the original.
    Expression,
    /// Omits the statement.
    Statement,
    /// Returns the inserted text at the start of a function's body.
    Entry,
    /// Omits a match arm; another arm matches everything.
    Arm,
}

/// All points of a source file, in the order of the text.
pub(crate) fn find(text: &str) -> Result<Vec<Point>> {
    let file = syn::parse_file(text).context("the source file cannot be parsed")?;
    let mut finder = Finder { text, function: String::new(), is_switchable: false, points: Vec::new() };
    finder.visit_file(&file);
    finder.points.sort_by_key(|point| (point.outer.start, point.outer.end));
    Ok(finder.points)
}

struct Finder<'a> {
    text: &'a str,
    function: String,
    /// True if the visitor is in the body of a function that runs at run time.
    is_switchable: bool,
    points: Vec<Point>,
}

impl Finder<'_> {
    fn add(&mut self, outer: Span, form: Form, edit: Span, replacement: impl Into<String>) {
        self.add_at(outer.byte_range(), form, edit.byte_range(), replacement.into());
    }

    fn add_at(&mut self, outer: Range<usize>, form: Form, edit: Range<usize>, replacement: String) {
        if !self.is_switchable || self.text[edit.clone()] == replacement {
            return;
        }
        let line = self.text[..edit.start].matches('\n').count() + 1;
        let function = self.function.clone();
        self.points.push(Point { outer, edit: (edit, replacement), form, function, line });
    }

    /// Visits the body of a function, and its start.
    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let outside =
            (std::mem::replace(&mut self.function, signature.ident.to_string()), self.is_switchable);
        self.is_switchable = signature.constness.is_none();
        let start = block.brace_token.span.open().byte_range().end;
        let is_trivial = |value: &str| match block.stmts.as_slice() {
            [] => true,
            [Stmt::Expr(only, None)] => same_tokens(&only.to_token_stream().to_string(), value),
            _ => false,
        };
        for value in early_results(&signature.output) {
            if !is_trivial(&value) {
                self.add_at(start..start, Form::Entry, start..start, format!(" return {value};"));
            }
        }
        self.visit_block(block);
        (self.function, self.is_switchable) = outside;
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        for other in other_operators(&binary.op) {
            self.add(binary.span(), Form::Expression, binary.op.span(), *other);
        }
    }

    fn condition(&mut self, condition: &Expr) {
        if !has_let(condition) && !matches!(condition, Expr::Lit(_)) {
            for value in ["true", "false"] {
                self.add(condition.span(), Form::Expression, condition.span(), value);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_item_struct(&mut self, _: &'ast syn::ItemStruct) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_compiled(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        let is_text =
            of.is_some_and(|name| ["Debug", "Display", "Error"].iter().any(|text| name.ident == text));
        if is_compiled(&item.attrs) && !is_text {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if is_compiled(&function.attrs) {
            self.body(&function.sig, &function.block);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if is_compiled(&function.attrs) {
            self.body(&function.sig, &function.block);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let (true, Some(block)) = (is_compiled(&function.attrs), &function.default) {
            self.body(&function.sig, block);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if is_compiled(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if is_compiled(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = statement {
            if !is_compiled(attributes(expr)) {
                return;
            }
            let inner = match expr {
                Expr::Try(attempt) => &*attempt.expr,
                other => other,
            };
            let is_assignment = matches!(inner, Expr::Assign(_))
                || matches!(inner, Expr::Binary(binary) if is_assignment(&binary.op));
            if is_assignment || matches!(inner, Expr::Call(_) | Expr::MethodCall(_)) {
                self.add(statement.span(), Form::Statement, statement.span(), "");
            }
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_compiled(&arm.attrs) {
            return;
        }
        if let Some(guard) = guard(arm) {
            self.condition(guard);
            // A guard is part of its pattern, and patterns are not visited.
            self.visit_expr(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_match(&mut self, matching: &'ast syn::ExprMatch) {
        let takes_all = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_));
        if matching.arms.iter().any(takes_all) {
            for arm in matching.arms.iter().filter(|arm| guard(arm).is_none() && !takes_all(arm)) {
                if is_compiled(&arm.attrs) {
                    let end = arm.pat.span().byte_range().end;
                    self.add_at(end..end, Form::Arm, arm.span().byte_range(), String::new());
                }
            }
        }
        visit::visit_expr_match(self, matching);
    }

    fn visit_expr_if(&mut self, choice: &'ast syn::ExprIf) {
        self.condition(&choice.cond);
        visit::visit_expr_if(self, choice);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            self.binary(binary);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
            self.add(unary.span(), Form::Expression, unary.op.span(), "");
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        for (one, other) in OTHER_METHODS {
            for (from, to) in [(one, other), (other, one)] {
                if name == *from {
                    self.add(call.span(), Form::Expression, call.method.span(), *to);
                }
            }
        }
        if name == "is_empty" && call.args.is_empty() {
            let start = call.span().byte_range().start;
            self.add_at(call.span().byte_range(), Form::Expression, start..start, "!".into());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        match &literal.lit {
            Lit::Bool(value) => {
                self.add(literal.span(), Form::Expression, literal.span(), (!value.value).to_string())
            }
            Lit::Int(value) => {
                let Ok(number) = value.base10_parse::<u128>() else { return };
                for other in [number.checked_add(1), number.checked_sub(1)].into_iter().flatten() {
                    let text = format!("{other}{}", value.suffix());
                    self.add(literal.span(), Form::Expression, literal.span(), text);
                }
            }
            _ => {}
        }
    }
}

/// Methods with the same arguments and another meaning.
const OTHER_METHODS: &[(&str, &str)] = &[
    ("min", "max"),
    ("min_by_key", "max_by_key"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("any", "all"),
    ("first", "last"),
    ("saturating_add", "saturating_sub"),
    ("checked_add", "checked_sub"),
    ("wrapping_add", "wrapping_sub"),
    ("fetch_add", "fetch_sub"),
    ("fetch_max", "fetch_min"),
    ("fetch_or", "fetch_and"),
    ("skip_while", "take_while"),
    ("next", "last"),
    ("pop_front", "pop_back"),
    ("push_front", "push_back"),
    ("trailing_zeros", "leading_zeros"),
    ("div_ceil", "wrapping_div"),
];

fn other_operators(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitXor(_) => &["&"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["/="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

/// Values that a function of this type could return at its start. Types without a default are found when the switches are
/// compiled.
fn early_results(output: &ReturnType) -> Vec<String> {
    let ReturnType::Type(_, of) = output else { return vec![String::new()] };
    let text = of.to_token_stream().to_string().replace(' ', "");
    let values = |values: &[&str]| values.iter().map(|value| value.to_string()).collect();
    let is_number = |name: &str| {
        ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"]
            .contains(&name)
    };
    match &**of {
        Type::Tuple(tuple) if tuple.elems.is_empty() => values(&["()"]),
        Type::Reference(_) | Type::ImplTrait(_) | Type::Never(_) | Type::Ptr(_) => Vec::new(),
        Type::Path(_) => match generic(&text) {
            ("bool", _) => values(&["true", "false"]),
            (name, _) if is_number(name) => values(&["0", "1"]),
            ("Option", _) => values(&["None"]),
            ("Result", Some(inner)) => match inner.split(',').next().unwrap_or_default() {
                "()" => values(&["Ok(())"]),
                "bool" => values(&["Ok(true)", "Ok(false)"]),
                first if first.starts_with("Option<") => values(&["Ok(None)"]),
                first if first.starts_with('(') || first == "Self" => Vec::new(),
                _ => values(&["Ok(Default::default())"]),
            },
            ("Self", _) => Vec::new(),
            _ => values(&["Default::default()"]),
        },
        _ => values(&["Default::default()"]),
    }
}

/// The last name of a type, and its generic arguments.
fn generic(text: &str) -> (&str, Option<&str>) {
    let (path, inner) = match text.split_once('<') {
        Some((path, rest)) => (path, rest.strip_suffix('>')),
        None => (text, None),
    };
    (path.rsplit("::").next().unwrap_or(path), inner)
}

fn same_tokens(one: &str, other: &str) -> bool {
    let bare = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    bare(one) == bare(other)
}

/// Returns whether an expression binds variables, so that only `if` and `while` can contain it.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn attributes(expr: &Expr) -> &[Attribute] {
    match expr {
        Expr::Call(call) => &call.attrs,
        Expr::MethodCall(call) => &call.attrs,
        Expr::Assign(assign) => &assign.attrs,
        Expr::Binary(binary) => &binary.attrs,
        Expr::If(choice) => &choice.attrs,
        Expr::Block(block) => &block.attrs,
        Expr::Unsafe(block) => &block.attrs,
        Expr::Try(attempt) => &attempt.attrs,
        _ => &[],
    }
}

/// The guard of a match arm.
fn guard(arm: &syn::Arm) -> Option<&Expr> {
    match &arm.pat {
        syn::Pat::Guard(pattern) => Some(&pattern.guard),
        _ => None,
    }
}

/// Returns whether the item is compiled with the tests, and is not itself a test.
fn is_compiled(attributes: &[Attribute]) -> bool {
    attributes.iter().all(|attribute| {
        if attribute.path().is_ident("test") {
            return false;
        }
        !attribute.path().is_ident("cfg") || attribute.parse_args::<Meta>().is_ok_and(|meta| holds(&meta))
    })
}

/// Evaluates a condition of `cfg` for Linux with the default features.
fn holds(meta: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        let parsed = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
        parsed.map(|parts| parts.into_iter().collect::<Vec<_>>()).unwrap_or_default()
    };
    match meta {
        Meta::Path(path) => path.is_ident("unix") || path.is_ident("debug_assertions"),
        Meta::List(list) if list.path.is_ident("not") => !parts(list).iter().any(holds),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().all(holds),
        Meta::List(list) if list.path.is_ident("any") => parts(list).iter().any(holds),
        Meta::List(_) => false,
        Meta::NameValue(pair) => {
            let value = pair.value.to_token_stream().to_string();
            let value = value.trim_matches('"');
            match pair.path.get_ident().map(ToString::to_string).as_deref() {
                Some("feature") => ["backend-caching", "backend-native", "sim"].contains(&value),
                Some("target_os") => value == "linux",
                Some("target_family") => value == "unix",
                Some("target_pointer_width") => value == "64",
                _ => false,
            }
        }
    }
}

/// The code of a file without its tests, on one line.
pub(crate) fn without_tests(text: &str) -> Result<String> {
    // Doc comments would become attributes.
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut file = syn::parse_file(&lines.collect::<Vec<_>>().join("\n"))?;
    let is_tests = |item: &syn::Item| matches!(item, syn::Item::Mod(module) if !is_compiled(&module.attrs));
    file.items.retain(|item| !is_tests(item));
    Ok(file.to_token_stream().to_string())
}

/// Code on one line, without its comments.
pub(crate) fn on_one_line(text: &str) -> Result<String> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow::anyhow!("{text:?}: {error}"))?;
    Ok(tokens.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each point as the changed line, before and after.
    fn changes(text: &str) -> Vec<(String, String)> {
        let found = find(text).unwrap();
        found
            .iter()
            .map(|point| {
                let (range, new) = &point.edit;
                (text[point.outer.clone()].to_string(), format!("{}→{new}", &text[range.clone()]))
            })
            .collect()
    }

    fn edits(body: &str) -> Vec<String> {
        changes(&format!("fn f() -> &'static str {{ {body} }}")).into_iter().map(|(_, edit)| edit).collect()
    }

    #[test]
    fn operators_literals_and_methods_are_found() {
        assert_eq!(edits("a < b"), ["<→<=", "<→>="]);
        assert_eq!(edits("a && !b"), ["&&→||", "!→"]);
        assert_eq!(edits("a + 2"), ["+→-", "2→3", "2→1"]);
        assert_eq!(edits("a.min(b)"), ["min→max"]);
        assert_eq!(edits("a.is_empty()"), ["→!"]);
        assert_eq!(edits("f(true)"), ["true→false"]);
    }

    #[test]
    fn conditions_with_bindings_keep_them() {
        assert_eq!(edits("if let Some(a) = b && c < d { e } else { g }"), ["<→<=", "<→>="]);
        assert_eq!(edits("if a { b } else { c }"), ["a→true", "a→false"]);
    }

    #[test]
    fn statements_and_arms_are_left_out() {
        assert_eq!(edits("a.push(b); c"), ["a.push(b);→"]);
        assert_eq!(edits("a?.b()?; c"), ["a?.b()?;→"]);
        assert_eq!(edits("return a; b"), [""; 0]);
        assert_eq!(edits("match a { A => b, _ => c }"), ["A => b,→"]);
        assert_eq!(edits("match a { A => b, B => c }"), [""; 0]);
    }

    #[test]
    fn functions_return_early_what_their_type_allows() {
        let entries = |signature: &str| {
            let all = changes(&format!("{signature} {{ g(); h }}"));
            let entries = all.into_iter().filter(|(outer, _)| outer.is_empty());
            entries.map(|(_, edit)| edit).collect::<Vec<_>>()
        };
        assert_eq!(entries("fn f()"), ["→ return ;"]);
        assert_eq!(entries("fn f() -> bool"), ["→ return true;", "→ return false;"]);
        assert_eq!(entries("fn f() -> Result<(), Error>"), ["→ return Ok(());"]);
        assert_eq!(entries("fn f() -> Option<u8>"), ["→ return None;"]);
        assert_eq!(entries("fn f() -> &u8"), [""; 0]);
    }

    #[test]
    fn what_no_switch_can_reach_is_left_alone() {
        for text in [
            "const fn f() -> u8 { 1 + 2 }",
            "const A: u8 = 1 + 2;",
            "static A: [u8; 3] = [1; 3];",
            "#[cfg(test)] mod tests { fn f() { a(); } }",
            "#[test] fn f() { a(); }",
            "#[cfg(gpumem_planted_bugs)] fn f() { a(); }",
            "#[cfg(not(unix))] fn f() { a(); }",
            "impl Debug for A { fn fmt(&self) { a(); } }",
            "fn f<const N: usize>() -> &'static [u8; 3 + 4] { debug_assert!(a < b); }",
        ] {
            assert_eq!(find(text).unwrap(), [], "{text}");
        }
        assert_ne!(find("#[cfg(all(unix, not(miri)))] fn f() { a(); }").unwrap(), []);
    }

    #[test]
    fn comments_and_tests_make_no_other_source() {
        let one =
            without_tests("//! A\n\n/// B\nfn f() {} // c\n#[cfg(test)]\nmod tests { fn g() {} }\n").unwrap();
        assert_eq!(one, without_tests("fn f() {}").unwrap());
        assert_ne!(one, without_tests("fn f(a: u8) {}").unwrap());
    }

    #[test]
    fn lines_count_from_one() {
        let points = find("\nfn f() -> &'static str {\n    a < b\n}\n").unwrap();
        assert_eq!((points[0].line, points[0].function.as_str()), (3, "f"));
    }
}
