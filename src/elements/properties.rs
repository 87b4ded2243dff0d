//! Tables of properties: each property stands once, with its specification, how it is read and how it is written.
//!
//! Knows GObject, and no element.

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

    /// With one more property, of this specification, whose values are of the type `T`.
    pub(super) fn with<T>(mut self, spec: glib::ParamSpec, get: fn(&S) -> T, set: fn(&mut S, T)) -> Self
    where
        T: for<'value> glib::value::FromValue<'value> + Into<glib::Value> + 'static,
    {
        let get = Box::new(move |settings: &S| get(settings).into());
        let set = Box::new(move |settings: &mut S, value: &glib::Value| {
            set(settings, value.get().expect("GObject has checked the type"));
        });
        self.0.push(Property { spec, get, set });
        self
    }

    /// The specifications, in the order of the table.
    pub(super) fn specs(&self) -> impl Iterator<Item = glib::ParamSpec> {
        self.0.iter().map(|property| property.spec.clone())
    }

    /// Writes a property; false if it is not one of these.
    pub(super) fn set(&self, settings: &mut S, name: &str, value: &glib::Value) -> bool {
        self.find(name).map(|property| (property.set)(settings, value)).is_some()
    }

    /// The value of a property; `None` if it is not one of these.
    pub(super) fn get(&self, settings: &S, name: &str) -> Option<glib::Value> {
        self.find(name).map(|property| (property.get)(settings))
    }

    fn find(&self, name: &str) -> Option<&Property<S>> {
        self.0.iter().find(|property| property.spec.name() == name)
    }
}
