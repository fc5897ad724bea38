//! The estimates of draft section 6.4, made exact by the profile's section 11.
