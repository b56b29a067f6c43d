package operation

// Counts reports whether the losses that o counts are of every element that is not the source's value. They are not
// where elements are made or changed, and where products of codes and scales are quantised, in which products that F32
// rounds do not show.
func Counts(o Operation) bool {
	switch o := o.(type) {
	case Make, *Scales, *Encode, *Merge:
		return false
	case *Quantise:
		return o.Scaled == nil
	}
	return true
}
