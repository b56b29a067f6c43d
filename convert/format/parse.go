package format

// A parser of a file that may be hostile ends at the first thing that is wrong: Fail ends it at any depth, so that the
// functions of its grammar return values alone.

// parseFailure is what Fail panics with.
type parseFailure struct{ err error }

// Parse calls parse, and returns the error that Fail ended it with.
func Parse(parse func()) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case parseFailure:
			err = cause.err
		default:
			panic(cause)
		}
	}()
	parse()
	return nil
}

// Fail ends the parse that Parse called.
func Fail(err error) { panic(parseFailure{err}) }
