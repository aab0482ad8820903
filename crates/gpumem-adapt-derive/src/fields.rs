//! Fields: how each is copied, moved, and required to be adaptable.

use crate::attributes::OfField;
use crate::parameters::{Change, Parameters, mentions, respanned};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Fields, Generics, Index, Member, Path, Result, Type, WherePredicate, parse_quote};

/// A field of a struct or of a variant.
pub(crate) struct Field<'a> {
    pub(crate) member: Member,
    /// The name that the field is bound to.
    pub(crate) local: Ident,
    pub(crate) ty: &'a Type,
    pub(crate) rule: Rule,
}

/// The way in which a field moves.
pub(crate) enum Rule {
    Adapt,
    Skip,
    With(Path),
    /// Is a number of the type of the elements.
    Element,
    /// Has no value.
    Phantom,
}

impl<'a> Field<'a> {
    pub(crate) fn parse_all(fields: &'a Fields) -> Result<Vec<Self>> {
        let parse = |(index, field): (usize, &'a syn::Field)| {
            let member = match &field.ident {
                Some(ident) => Member::Named(ident.clone()),
                None => Member::Unnamed(Index { index: index as u32, span: field.ty.span() }),
            };
            let rule = match OfField::parse(&field.attrs)? {
                OfField::Skip => Rule::Skip,
                OfField::With(path) => Rule::With(path),
                OfField::Adapt if is_phantom(&field.ty) => Rule::Phantom,
                OfField::Adapt if is_borrowed(&field.ty) => {
                    return Err(Error::new_spanned(
                        &field.ty,
                        "a reference cannot be moved: the value behind it becomes a new one; store the value itself, or mark the field \
                         with `#[adapt(skip)]`",
                    ));
                }
                OfField::Adapt => Rule::Adapt,
            };
            Ok(Self { member, local: format_ident!("__field{index}"), ty: &field.ty, rule })
        };
        fields.iter().enumerate().map(parse).collect()
    }

    pub(crate) fn is_adapted(&self) -> bool {
        matches!(self.rule, Rule::Adapt)
    }

    /// The change of the field. `None` if it has no value.
    pub(crate) fn change(&self) -> Option<Change> {
        match self.rule {
            Rule::Adapt | Rule::Element => Some(Change::Adapted),
            Rule::With(_) => Some(Change::Converted),
            Rule::Skip => Some(Change::Skipped),
            Rule::Phantom => None,
        }
    }

    /// Sets the rule of a field that depends on the roles of the parameters.
    pub(crate) fn apply(&mut self, parameters: &Parameters) {
        if self.is_adapted() && parameters.is_element(self.ty) {
            self.rule = Rule::Element;
        }
    }

    /// The expression of the new field in a copy. The local variable is a reference to the field.
    pub(crate) fn copied(&self, krate: &Path) -> TokenStream {
        let (local, ty) = (&self.local, self.ty);
        match &self.rule {
            Rule::Adapt => self.named(krate, &quote!(<#ty as #krate::Adapt<__To>>::adapt_with(#local, __cx))),
            Rule::With(path) => self.named(krate, &quote!(#path(#local, __cx))),
            Rule::Skip => quote_spanned!(ty.span()=> <#ty as ::core::clone::Clone>::clone(#local)),
            Rule::Element => {
                let policy = policy(ty, krate);
                quote!(#policy::convert(*#local))
            }
            Rule::Phantom => quote!(::core::marker::PhantomData),
        }
    }

    /// The expression of the new field in a move. The local variable is the field.
    pub(crate) fn moved(&self, krate: &Path) -> TokenStream {
        let (local, ty) = (&self.local, self.ty);
        match &self.rule {
            Rule::Adapt => {
                self.named(krate, &quote!(<#ty as #krate::Adapt<__To>>::into_adapted_with(#local, __cx)))
            }
            Rule::With(path) => self.named(krate, &quote!(#path(&#local, __cx))),
            Rule::Skip => quote!(#local),
            Rule::Element => {
                let policy = policy(ty, krate);
                quote!(#policy::convert(#local))
            }
            Rule::Phantom => quote!(::core::marker::PhantomData),
        }
    }

    /// A result with the name of the field in its error.
    fn named(&self, krate: &Path, result: &TokenStream) -> TokenStream {
        let name = match &self.member {
            Member::Named(ident) => ident.to_string().trim_start_matches("r#").to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        quote_spanned!(self.ty.span()=> #result.map_err(|error| #krate::AdaptError::within(error, #name))?)
    }

    /// Plans the field. The local variable is a reference to the field.
    pub(crate) fn planned(&self, krate: &Path) -> Option<TokenStream> {
        let (local, ty) = (&self.local, self.ty);
        self.is_adapted().then(|| quote!(<#ty as #krate::Adapt<__To>>::plan(#local, __plan);))
    }

    /// Returns the expression that checks whether the field is at the target.
    pub(crate) fn is_at(&self, krate: &Path) -> TokenStream {
        let (local, ty) = (&self.local, self.ty);
        match &self.rule {
            Rule::Adapt => quote!(<#ty as #krate::Adapt<__To>>::is_at(#local, __to)),
            Rule::With(_) => quote!(false),
            Rule::Element => {
                let policy = policy(ty, krate);
                quote!(#policy::unchanged(&[]).is_some())
            }
            Rule::Skip | Rule::Phantom => quote!(true),
        }
    }

    /// Returns the bound that the implementation puts on the field. A field that contains the type itself needs none.
    pub(crate) fn bound(&self, of: &Ident, parameters: &Parameters, krate: &Path) -> Option<WherePredicate> {
        // A parameter itself is bound already.
        if !self.is_adapted() || mentions(self.ty, of) || parameters.is_parameter(self.ty) {
            return None;
        }
        let (ty, adapted) = (self.ty, parameters.adapted(self.ty));
        Some(parse_quote!(#ty: #krate::Adapt<__To, Adapted = #adapted>))
    }

    /// A check that fails to compile at the field if it cannot be moved to any GPU. Only types without parameters, or with families
    /// of arrays alone, can be checked before they are used.
    pub(crate) fn check(
        &self,
        of: &Ident,
        generics: &Generics,
        parameters: &Parameters,
        krate: &Path,
    ) -> Option<TokenStream> {
        let ty = self.ty;
        let is_open = generics.params.iter().any(|parameter| match parameter {
            syn::GenericParam::Type(parameter) => {
                parameters.role(&parameter.ident) != Some(crate::parameters::Role::Storage)
                    && mentions(ty, &parameter.ident)
            }
            syn::GenericParam::Const(parameter) => mentions(ty, &parameter.ident),
            syn::GenericParam::Lifetime(_) => false,
        });
        let has_lifetime = generics.lifetimes().next().is_some() && has_lifetime(ty);
        let has_self = mentions(ty, &format_ident!("Self"));
        if !self.is_adapted() || mentions(ty, of) || is_open || has_lifetime || has_self {
            return None;
        }
        let before = parameters.in_family(ty, &quote!(#krate::Host));
        let after = parameters.in_family(ty, &quote!(#krate::array::kind::DeviceLocal));
        // The compiler reports the place of the whole path, which begins with the crate.
        let krate = respanned(&quote!(#krate), ty.span());
        Some(quote_spanned!(ty.span()=> #krate::derived::field::<#before, #after>();))
    }
}

/// The element policy of the target, for a type of elements.
fn policy(element: &Type, krate: &Path) -> TokenStream {
    quote!(<<__To as #krate::Target>::Policy as #krate::Policy<#element>>)
}

fn is_phantom(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == "PhantomData"),
        _ => false,
    }
}

/// True if the type is a reference to a value that changes.
fn is_borrowed(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => {
            let name = match &*reference.elem {
                Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
                _ => None,
            };
            !name.is_some_and(|name| CONSTANT.contains(&name.as_str()))
        }
        _ => false,
    }
}

/// Types whose references stay as they are.
const CONSTANT: [&str; 4] = ["str", "Path", "OsStr", "CStr"];

fn has_lifetime(ty: &Type) -> bool {
    struct Search(bool);
    impl<'ast> syn::visit::Visit<'ast> for Search {
        fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
            self.0 |= lifetime.ident != "static";
        }
    }
    let mut search = Search(false);
    syn::visit::Visit::visit_type(&mut search, ty);
    search.0
}
