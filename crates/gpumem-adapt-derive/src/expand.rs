//! The implementation that the macro writes.

use crate::attributes::{OfType, refuse};
use crate::fields::Field;
use crate::parameters::{Parameters, Role};
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Generics, Path, Result, WherePredicate, parse_quote};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let options = OfType::parse(&input.attrs)?;
    let krate = options.krate.clone().unwrap_or_else(found_crate);
    if options.is_element {
        return Ok(element(input, &krate));
    }
    let mut shapes = shapes(input)?;
    let fields = || shapes.iter().flat_map(|shape| &shape.fields);
    let changes: Vec<_> = fields().filter_map(|field| Some((field.ty, field.change()?))).collect();
    let parameters = Parameters::new(&input.generics, &changes, &krate);
    shapes.iter_mut().flat_map(|shape| &mut shape.fields).for_each(|field| field.apply(&parameters));
    let fields = || shapes.iter().flat_map(|shape| &shape.fields);

    let ident = &input.ident;
    let mut bounds: Vec<WherePredicate> = Vec::new();
    for value in parameters.of_role(Role::Value) {
        bounds.push(parse_quote!(#value: #krate::Adapt<__To>));
    }
    for element in parameters.of_role(Role::Element) {
        bounds.push(parse_quote!(<__To as #krate::Target>::Policy: #krate::Policy<#element>));
    }
    bounds.extend(parameters.bounds(&input.generics));
    bounds.extend(fields().filter_map(|field| field.bound(ident, &parameters, &krate)));
    let copies = shapes.iter().map(|shape| shape.arm(ident, |field| field.copied(&krate)));
    let moves = shapes.iter().map(|shape| shape.arm(ident, |field| field.moved(&krate)));
    let plans = shapes.iter().map(|shape| shape.planned(&krate));
    let are_at = shapes.iter().map(|shape| shape.is_at(&krate));
    let checks = fields().filter_map(|field| field.check(ident, &input.generics, &parameters, &krate));
    // A reference to an enum without variants counts as a value.
    let this = if shapes.is_empty() { quote!(*self) } else { quote!(self) };
    let (arguments, header) =
        (parameters.arguments(&input.generics), header(ident, &input.generics, &krate, &bounds));
    Ok(quote! {
        #[automatically_derived]
        #[allow(clippy::all, unused_variables, unreachable_code)]
        #header {
            type Adapted = #ident #arguments;
            type Many = #krate::Separate;

            fn adapt_with(
                &self,
                __cx: &mut #krate::Context<'_, __To>,
            ) -> ::core::result::Result<Self::Adapted, #krate::AdaptError> {
                ::core::result::Result::Ok(match #this { #(#copies)* })
            }

            fn into_adapted_with(
                self,
                __cx: &mut #krate::Context<'_, __To>,
            ) -> ::core::result::Result<Self::Adapted, #krate::AdaptError> {
                ::core::result::Result::Ok(match self { #(#moves)* })
            }

            fn plan<'__a>(&'__a self, __plan: &mut #krate::Plan<'__a>) {
                match #this { #(#plans)* }
            }

            fn is_at(&self, __to: &__To) -> bool {
                match #this { #(#are_at)* }
            }
        }

        const _: fn() = || {
            #(#checks)*
        };
    })
}

/// The fields of a struct, or of a variant of an enum.
struct Shape<'a> {
    variant: Option<&'a Ident>,
    fields: Vec<Field<'a>>,
}

fn shapes(input: &DeriveInput) -> Result<Vec<Shape<'_>>> {
    match &input.data {
        Data::Struct(data) => Ok(vec![Shape { variant: None, fields: Field::parse_all(&data.fields)? }]),
        Data::Enum(data) => {
            let shapes = data.variants.iter().map(|variant| {
                refuse(&variant.attrs)?;
                Ok(Shape { variant: Some(&variant.ident), fields: Field::parse_all(&variant.fields)? })
            });
            shapes.collect()
        }
        Data::Union(_) => Err(Error::new_spanned(
            &input.ident,
            "a union cannot derive `Adapt`: the field in use is unknown",
        )),
    }
}

impl Shape<'_> {
    fn pattern(&self) -> TokenStream {
        let (members, locals) = (self.members(), self.fields.iter().map(|field| &field.local));
        let variant = self.variant.map(|variant| quote!(::#variant));
        quote!(Self #variant { #(#members: #locals),* })
    }

    fn members(&self) -> impl Iterator<Item = &syn::Member> {
        self.fields.iter().map(|field| &field.member)
    }

    /// Takes the value apart and builds the result.
    fn arm(&self, ident: &Ident, new: impl Fn(&Field<'_>) -> TokenStream) -> TokenStream {
        let (pattern, members) = (self.pattern(), self.members());
        let (values, variant) = (self.fields.iter().map(new), self.variant.map(|variant| quote!(::#variant)));
        quote!(#pattern => #ident #variant { #(#members: #values),* },)
    }

    fn planned(&self, krate: &Path) -> TokenStream {
        let (pattern, fields) = (self.pattern(), self.fields.iter().filter_map(|field| field.planned(krate)));
        quote!(#pattern => { #(#fields)* })
    }

    fn is_at(&self, krate: &Path) -> TokenStream {
        let (pattern, fields) = (self.pattern(), self.fields.iter().map(|field| field.is_at(krate)));
        quote!(#pattern => true #(&& #fields)*,)
    }
}

/// `impl<…, __To> Adapt<__To> for Value<…> where …`
fn header(ident: &Ident, generics: &Generics, krate: &Path, bounds: &[WherePredicate]) -> TokenStream {
    let (_, arguments, _) = generics.split_for_impl();
    let mut generics = generics.clone();
    generics.params.push(parse_quote!(__To: #krate::Target));
    generics.make_where_clause().predicates.extend(bounds.iter().cloned());
    let (parameters, _, conditions) = generics.split_for_impl();
    quote!(impl #parameters #krate::Adapt<__To> for #ident #arguments #conditions)
}

/// The implementation for an element: it does not change, and a sequence of them becomes an array.
fn element(input: &DeriveInput, krate: &Path) -> TokenStream {
    let mut generics = input.generics.clone();
    if generics.type_params().next().is_some() {
        // Some types of the parameters are not plain bytes.
        generics.make_where_clause().predicates.push(parse_quote!(Self: #krate::array::Element));
    }
    let receive: WherePredicate = parse_quote!(__To: #krate::Receive<Self, #krate::array::ndarray::Ix1>);
    let header = header(&input.ident, &generics, krate, &[receive]);
    let (ident, (parameters, arguments, conditions)) = (&input.ident, generics.split_for_impl());
    quote! {
        #[automatically_derived]
        impl #parameters #krate::PlainElement for #ident #arguments #conditions {}

        #[automatically_derived]
        #header {
            type Adapted = Self;
            type Many = #krate::Merged;

            fn adapt_with(
                &self,
                _: &mut #krate::Context<'_, __To>,
            ) -> ::core::result::Result<Self, #krate::AdaptError> {
                ::core::result::Result::Ok(*self)
            }

            fn is_at(&self, _: &__To) -> bool {
                true
            }
        }
    }
}

/// The path of `gpumem-adapt`: as a dependency of the user, or as a module of the façade.
fn found_crate() -> Path {
    let path = |found, name: &str| match found {
        FoundCrate::Itself => format_ident!("{name}"),
        FoundCrate::Name(name) => format_ident!("{name}"),
    };
    if let Ok(found) = crate_name("gpumem-adapt") {
        let name = path(found, "gpumem_adapt");
        return parse_quote!(::#name);
    }
    match crate_name("gpumem") {
        Ok(found) => {
            let name = path(found, "gpumem");
            parse_quote!(::#name::adapt)
        }
        Err(_) => parse_quote!(::gpumem_adapt),
    }
}
