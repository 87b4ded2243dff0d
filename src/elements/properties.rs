//! Tables of properties: each entry has the specification, the getter and the setter of a property.
//!
//! This module uses GObject, but no element.

use gst::glib;
use gstreamer as gst;

/// A property of the settings `S`.
struct Property<S> {
    spec: glib::ParamSpec,
    get: Get<S>,
    set: Set<S>,
}

type Get<S> = Box<dyn Fn(&S) -> glib::Value + Send + Sync>;
type Set<S> = Box<dyn Fn(&mut S, &glib::Value) + Send + Sync>;

/// The properties of the settings `S`.
pub(super) struct Properties<S>(Vec<Property<S>>);

impl<S: 'static> Properties<S> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a property with a getter and a setter for values of type `T`.
    pub(super) fn with<T>(self, spec: glib::ParamSpec, get: fn(&S) -> T, set: fn(&mut S, T)) -> Self
    where
        T: for<'value> glib::value::FromValue<'value> + Into<glib::Value> + 'static,
    {
        self.push(spec, Box::new(move |settings| get(settings).into()), Box::new(move |settings, value| set(settings, typed(value))))
    }

    /// Adds a property whose value is stored in a field of type `T`. `field` returns that field.
    pub(super) fn field<T>(self, spec: glib::ParamSpec, field: fn(&mut S) -> &mut T) -> Self
    where
        S: Clone,
        T: for<'value> glib::value::FromValue<'value> + Into<glib::Value> + Clone + 'static,
    {
        let get = Box::new(move |settings: &S| field(&mut settings.clone()).clone().into());
        let set = Box::new(move |settings: &mut S, value: &glib::Value| *field(settings) = typed(value));
        self.push(spec, get, set)
    }

    fn push(mut self, spec: glib::ParamSpec, get: Get<S>, set: Set<S>) -> Self {
        self.0.push(Property { spec, get, set });
        self
    }

    /// Returns the specifications of the properties, in the order of the table.
    pub(super) fn specs(&self) -> impl Iterator<Item = glib::ParamSpec> {
        self.0.iter().map(|property| property.spec.clone())
    }

    /// Sets a property. Returns false if the table has no property `name`.
    pub(super) fn set(&self, settings: &mut S, name: &str, value: &glib::Value) -> bool {
        self.find(name).map(|property| (property.set)(settings, value)).is_some()
    }

    /// Returns the value of a property. `None` if the table has no property `name`.
    pub(super) fn get(&self, settings: &S, name: &str) -> Option<glib::Value> {
        self.find(name).map(|property| (property.get)(settings))
    }

    fn find(&self, name: &str) -> Option<&Property<S>> {
        self.0.iter().find(|property| property.spec.name() == name)
    }
}

fn typed<T: for<'value> glib::value::FromValue<'value>>(value: &glib::Value) -> T {
    value.get().expect("GObject has checked the type")
}
