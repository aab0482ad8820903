//! Type parameters: what each becomes in the result, and how the types of fields change with them.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::quote;
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::visit_mut::VisitMut;
use syn::{
    GenericParam, Generics, Path, TraitBound, Type, TypeParamBound, TypePath, WherePredicate, parse_quote,
};

/// The role of a type parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A family of arrays, bound by `Storage`.
    Storage,
    /// The type of elements, bound by `Element` or `Numeric`.
    Element,
    /// A part of the value.
    Value,
    /// In no field that changes.
    Unchanged,
}

/// The change of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Adapted,
    /// By a function of the program.
    Converted,
    Skipped,
}

/// The type parameters with their roles.
pub(crate) struct Parameters {
    roles: BTreeMap<Ident, Role>,
    krate: Path,
}

impl Parameters {
    pub(crate) fn new(generics: &Generics, fields: &[(&Type, Change)], krate: &Path) -> Self {
        let is_in = |parameter: &Ident, change: Change| {
            fields.iter().any(|(ty, found)| *found == change && mentions(ty, parameter))
        };
        let roles = generics.type_params().map(|parameter| {
            let mut bounds: Vec<&TypeParamBound> = parameter.bounds.iter().collect();
            for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
                if let WherePredicate::Type(predicate) = predicate
                    && matches!(&predicate.bounded_ty, Type::Path(path) if path.path.is_ident(&parameter.ident))
                {
                    bounds.extend(&predicate.bounds);
                }
            }
            let is_bound_by = |name: &str| bounds.iter().any(|bound| is_trait(bound, name));
            let role = if is_bound_by("Storage") {
                Role::Storage
            } else if is_bound_by("Element") || is_bound_by("Numeric") {
                let is_changed = [Change::Adapted, Change::Converted].map(|change| is_in(&parameter.ident, change));
                match is_in(&parameter.ident, Change::Skipped) && is_changed == [false; 2] {
                    true => Role::Unchanged,
                    false => Role::Element,
                }
            } else if is_in(&parameter.ident, Change::Adapted) {
                Role::Value
            } else {
                Role::Unchanged
            };
            (parameter.ident.clone(), role)
        });
        Self { roles: roles.collect(), krate: krate.clone() }
    }

    pub(crate) fn role(&self, parameter: &Ident) -> Option<Role> {
        self.roles.get(parameter).copied()
    }

    /// The parameters of one role.
    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = &Ident> {
        self.roles.iter().filter(move |(_, found)| **found == role).map(|(ident, _)| ident)
    }

    /// True if the type is a parameter.
    pub(crate) fn is_parameter(&self, ty: &Type) -> bool {
        self.role_of(ty).is_some()
    }

    /// True if the type is the parameter of elements.
    pub(crate) fn is_element(&self, ty: &Type) -> bool {
        self.role_of(ty) == Some(Role::Element)
    }

    /// The role of a type that is a parameter.
    fn role_of(&self, ty: &Type) -> Option<Role> {
        match ty {
            Type::Path(path) => self.role(path.path.get_ident()?),
            _ => None,
        }
    }

    /// The type in the result.
    pub(crate) fn adapted(&self, ty: &Type) -> Type {
        self.replaced(ty, &|ident, role| self.becomes(ident, role))
    }

    /// The type with all families of arrays replaced by one.
    pub(crate) fn in_family(&self, ty: &Type, family: &TokenStream) -> Type {
        self.replaced(ty, &|ident, role| match role {
            Role::Storage => family.clone(),
            _ => quote!(#ident),
        })
    }

    /// Returns the type that replaces a parameter.
    pub(crate) fn becomes(&self, ident: &Ident, role: Role) -> TokenStream {
        let krate = &self.krate;
        match role {
            Role::Storage => quote!(<__To as #krate::Target>::Storage),
            Role::Element => quote!(<<__To as #krate::Target>::Policy as #krate::Policy<#ident>>::Elem),
            Role::Value => quote!(<#ident as #krate::Adapt<__To>>::Adapted),
            Role::Unchanged => quote!(#ident),
        }
    }

    fn replaced(&self, ty: &Type, becomes: &dyn Fn(&Ident, Role) -> TokenStream) -> Type {
        let mut ty = ty.clone();
        Replace { parameters: self, becomes }.visit_type_mut(&mut ty);
        ty
    }

    /// The arguments of the result's type, in angle brackets.
    pub(crate) fn arguments(&self, generics: &Generics) -> TokenStream {
        let arguments = generics.params.iter().map(|parameter| match parameter {
            GenericParam::Lifetime(parameter) => {
                let lifetime = &parameter.lifetime;
                quote!(#lifetime)
            }
            GenericParam::Const(parameter) => {
                let ident = &parameter.ident;
                quote!(#ident)
            }
            GenericParam::Type(parameter) => {
                let role = self.role(&parameter.ident).unwrap_or(Role::Unchanged);
                self.becomes(&parameter.ident, role)
            }
        });
        match generics.params.is_empty() {
            true => quote!(),
            false => quote!(<#(#arguments),*>),
        }
    }

    /// The bounds of the parameters, as the result's type requires them.
    pub(crate) fn bounds(&self, generics: &Generics) -> Vec<WherePredicate> {
        let mut bounds = Vec::new();
        for parameter in generics.type_params() {
            let role = self.role(&parameter.ident).unwrap_or(Role::Unchanged);
            let (ty, replace) = (self.becomes(&parameter.ident, role), |bound: &TypeParamBound| {
                let mut bound = bound.clone();
                let becomes = |ident: &Ident, role| self.becomes(ident, role);
                Replace { parameters: self, becomes: &becomes }.visit_type_param_bound_mut(&mut bound);
                bound
            });
            // Holds for every family of arrays, and for the elements of every policy.
            let is_implied = |bound: &&TypeParamBound| {
                (role == Role::Storage && is_trait(bound, "Storage"))
                    || (role == Role::Element && is_trait(bound, "Element"))
            };
            let required = parameter.bounds.iter().filter(|bound| !is_implied(bound) && !is_relaxed(bound));
            let required = required.map(replace);
            let required: Vec<TypeParamBound> = required.collect();
            if role != Role::Unchanged && !required.is_empty() {
                bounds.push(parse_quote!(#ty: #(#required)+*));
            }
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            let mut predicate = predicate.clone();
            if let WherePredicate::Type(predicate) = &mut predicate {
                let bounds = core::mem::take(&mut predicate.bounds);
                predicate.bounds = bounds.into_iter().filter(|bound| !is_relaxed(bound)).collect();
            }
            let becomes = |ident: &Ident, role| self.becomes(ident, role);
            Replace { parameters: self, becomes: &becomes }.visit_where_predicate_mut(&mut predicate);
            bounds.push(predicate);
        }
        bounds
    }
}

/// Replaces parameters in types.
struct Replace<'a> {
    parameters: &'a Parameters,
    becomes: &'a dyn Fn(&Ident, Role) -> TokenStream,
}

impl VisitMut for Replace<'_> {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        syn::visit_mut::visit_type_mut(self, ty);
        let Type::Path(TypePath { qself: None, path, .. }) = ty else { return };
        let Some(first) = path.segments.first().filter(|_| path.leading_colon.is_none()) else { return };
        let Some(role) = self.parameters.role(&first.ident).filter(|role| *role != Role::Unchanged) else {
            return;
        };
        let (new, krate) = ((self.becomes)(&first.ident, role), &self.parameters.krate);
        let rest: Vec<_> = path.segments.iter().skip(1).collect();
        let new = match (rest.as_slice(), role) {
            ([], _) => new,
            // `S::Array<f32, Ix2>`
            ([..], Role::Storage) => quote!(<#new as #krate::Storage>),
            // `A::Item` of another trait: its implementation for the new type is looked up by the compiler.
            ([..], _) => quote!(<#new>),
        };
        // The compiler reports an error where the type begins.
        let new = respanned(&new, first.span());
        *ty = parse_quote!(#new #(::#rest)*);
    }
}

/// The tokens at another place of the program, for the compiler's errors.
pub(crate) fn respanned(tokens: &TokenStream, span: Span) -> TokenStream {
    let moved = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    tokens.clone().into_iter().map(moved).collect()
}

/// True if a type mentions an identifier.
pub(crate) fn mentions(ty: &Type, ident: &Ident) -> bool {
    struct Search<'a> {
        ident: &'a Ident,
        found: bool,
    }
    impl<'ast> Visit<'ast> for Search<'_> {
        fn visit_ident(&mut self, ident: &'ast Ident) {
            self.found |= ident == self.ident;
        }
    }
    let mut search = Search { ident, found: false };
    search.visit_type(ty);
    search.found
}

/// True if it is `?Sized`, which is possible only where a parameter is declared.
fn is_relaxed(bound: &TypeParamBound) -> bool {
    matches!(bound, TypeParamBound::Trait(TraitBound { maybe: Some(_), .. }))
}

fn is_trait(bound: &TypeParamBound, name: &str) -> bool {
    match bound {
        TypeParamBound::Trait(bound) => {
            bound.path.segments.last().is_some_and(|segment| segment.ident == name)
        }
        _ => false,
    }
}
