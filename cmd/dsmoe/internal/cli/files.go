package cli

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"
)

// Files are the files that a command can write beside stdout, each named by a flag.
type Files struct {
	flags []string
	open  map[string]*outFile // by flag; those that are asked for
}

// Flag adds a flag that names a file.
func (f *Files) Flag(cmd *cobra.Command, name, ending, usage string) {
	cmd.Flags().String(name, "", usage)
	cmd.MarkFlagFilename(name, ending)
	f.flags = append(f.flags, name)
}

// Around makes sure that the files can be written before run does its work, and are no inputs, and that nothing is left
// behind but whole files.
func (f *Files) Around(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		defer f.discard()
		if err := f.create(cmd, inputsOf(cmd, args)); err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// create begins the files that are asked for.
func (f *Files) create(cmd *cobra.Command, inputs []string) error {
	f.open = map[string]*outFile{}
	for i, name := range f.flags {
		flag := cmd.Flags().Lookup(name)
		if !flag.Changed {
			continue
		}
		out, err := createFile(flag.Value.String(), inputs...)
		if err != nil {
			return err
		}
		f.open[name] = out
		for _, other := range f.flags[:i] {
			if before := f.open[other]; before != nil && sameFile(before.name, out.name) {
				return Named(out.path, fmt.Errorf("--%s and --%s name one file", other, name))
			}
		}
	}
	return nil
}

// sameFile says whether two paths lead to one place.
func sameFile(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

// discard removes what is not complete.
func (f *Files) discard() {
	for _, out := range f.open {
		out.discard()
	}
}

// Write writes the file of a flag, if it is asked for. fill returns an error if there is nothing to write.
func (f *Files) Write(flag string, fill func(w io.Writer) error) error {
	if out := f.open[flag]; out != nil {
		return out.commit(fill)
	}
	return nil
}
