//! Kalman filter of one coordinate with constant velocity, and of a box as four such filters.
//!
//! Source: Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960. The state of SORT, ByteTrack and BoT-SORT has eight
//! dimensions, but its noise matrices are diagonal. So the four coordinates are independent, and each needs a state of two numbers only:
//! the value and its velocity per frame.

use crate::frame::{Rect, Transform};

/// Variances of the noise of one coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Added to the variance of the value in each frame.
    pub value: f32,
    /// Added to the variance of the velocity in each frame.
    pub velocity: f32,
}

/// Filter of one coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coordinate {
    pub value: f32,
    /// Change of the value per frame.
    pub velocity: f32,
    /// Covariance matrix: variance of the value, covariance, variance of the velocity.
    pub covariance: [f32; 3],
}

impl Coordinate {
    /// Creates a filter with a first measurement and the variances of value and velocity.
    pub fn new(value: f32, variances: [f32; 2]) -> Self {
        Self { value, velocity: 0.0, covariance: [variances[0], 0.0, variances[1]] }
    }

    /// Advances the state by one frame.
    pub fn predict(&mut self, noise: Noise) {
        let [value, mixed, velocity] = self.covariance;
        self.value += self.velocity;
        self.covariance = [value + 2.0 * mixed + velocity + noise.value, mixed + velocity, velocity + noise.velocity];
    }

    /// Corrects the state with a measurement. `variance` is the variance of the measurement's noise.
    pub fn update(&mut self, measured: f32, variance: f32) {
        let [value, mixed, velocity] = self.covariance;
        let total = value + variance;
        let (gain, velocity_gain) = (value / total, mixed / total);
        let innovation = measured - self.value;
        self.value += gain * innovation;
        self.velocity += velocity_gain * innovation;
        self.covariance = [(1.0 - gain) * value, (1.0 - gain) * mixed, velocity - velocity_gain * mixed];
    }
}

/// Filter of a box: center, width and height. Noise is proportional to the size of the box, as in BoT-SORT (Aharon et al., 2022).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxFilter {
    /// Center x, center y, width, height.
    coordinates: [Coordinate; 4],
}

/// Standard deviations of [`BoxFilter`], as fractions of the width (for x and width) or height (for y and height) of the box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxNoise {
    pub value: f32,
    pub velocity: f32,
    /// Standard deviation of a measurement with confidence 1.
    pub measurement: f32,
    /// Factor by which the standard deviation of a measurement with confidence 0 is larger.
    pub unsure: f32,
}

impl BoxFilter {
    /// Creates a filter from the first box.
    ///
    /// `pace` is the time between frames, relative to the time for which `noise` was chosen.
    pub fn new(rect: &Rect, noise: &BoxNoise, pace: f32) -> Self {
        let scales = scales(rect.width, rect.height);
        let (value, velocity) = (2.0 * noise.value, 10.0 * noise.velocity * pace);
        let coordinates =
            std::array::from_fn(|i| Coordinate::new(measured(rect)[i], [(value * scales[i]).powi(2), (velocity * scales[i]).powi(2)]));
        Self { coordinates }
    }

    /// Advances the state by one frame. The size of the box stays constant while the object is not detected. For `pace`, see
    /// [`BoxFilter::new`]: in a longer time, the object moves farther and changes its velocity more.
    pub fn predict(&mut self, noise: &BoxNoise, pace: f32, is_seen: bool) {
        if !is_seen {
            self.coordinates[2].velocity = 0.0;
            self.coordinates[3].velocity = 0.0;
        }
        let scales = scales(self.coordinates[2].value, self.coordinates[3].value);
        let (of_value, of_velocity) = (noise.value * pace.sqrt(), noise.velocity * pace * pace.sqrt());
        for (coordinate, scale) in self.coordinates.iter_mut().zip(scales) {
            coordinate.predict(Noise { value: (of_value * scale).powi(2), velocity: (of_velocity * scale).powi(2) });
        }
    }

    /// Corrects the state with a detection.
    pub fn update(&mut self, rect: &Rect, confidence: f32, noise: &BoxNoise) {
        let scales = scales(self.coordinates[2].value, self.coordinates[3].value);
        let deviation = noise.measurement * (1.0 + (noise.unsure - 1.0) * (1.0 - confidence.clamp(0.0, 1.0)));
        for ((coordinate, measured), scale) in self.coordinates.iter_mut().zip(measured(rect)).zip(scales) {
            coordinate.update(measured, (deviation * scale).powi(2));
        }
    }

    /// The box of the current state.
    pub fn rect(&self) -> Rect {
        let [x, y, width, height] = self.coordinates.map(|coordinate| coordinate.value);
        Rect::from_center(x, y, width.max(1e-3), height.max(1e-3))
    }

    /// Velocity of the center per frame.
    pub fn velocity(&self) -> (f32, f32) {
        (self.coordinates[0].velocity, self.coordinates[1].velocity)
    }

    /// Maps the box.
    pub fn map(&mut self, to: &Transform) {
        let [x, y, width, height] = &mut self.coordinates;
        (x.value, y.value) = (x.value * to.scale.0 + to.offset.0, y.value * to.scale.1 + to.offset.1);
        (width.value, height.value) = (width.value * to.scale.0, height.value * to.scale.1);
    }

    /// Moves the center.
    pub fn shift(&mut self, x: f32, y: f32) {
        self.coordinates[0].value += x;
        self.coordinates[1].value += y;
    }
}

fn measured(rect: &Rect) -> [f32; 4] {
    [rect.x + rect.width / 2.0, rect.y + rect.height / 2.0, rect.width, rect.height]
}

fn scales(width: f32, height: f32) -> [f32; 4] {
    let (width, height) = (width.max(1e-3), height.max(1e-3));
    [width, height, width, height]
}
