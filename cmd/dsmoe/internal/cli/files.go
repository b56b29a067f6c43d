package cli

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/convert/checkpoint"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Files are the files that a command can write beside stdout, each named by a flag.
type Files struct {
	flags []outFlag
	open  map[string]*outFile // by flag; those that are asked for
}

// Flag adds a flag that names a file.
func (f *Files) Flag(cmd *cobra.Command, name, ending, usage string) {
	cmd.Flags().String(name, "", usage)
	cmd.MarkFlagFilename(name, strings.Fields(ending)...) // any file without an ending
	InGroup(cmd.Flags(), Reporting, name)
	f.flags = append(f.flags, outFlag{name, ending})
}

// outFlag is a flag that names a file, and the ending of such files.
type outFlag struct{ name, ending string }

// check refuses a file whose name says that it is a picture or a page of another kind.
func (f outFlag) check(path string) error {
	ending := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if ending == f.ending || !slices.Contains([]string{"png", "jpg", "jpeg", "gif", "webp", "pdf", "svg", "html", "xml"}, ending) {
		return nil
	}
	hint := fmt.Sprintf("give it a name that ends in .%s", f.ending)
	if f.ending == "svg" {
		hint += "; rsvg-convert x.svg -o x.png, or a browser, makes another picture of it"
	}
	return problem.New(path, fmt.Sprintf("--%s writes %s, not %s", f.name, strings.ToUpper(f.ending), strings.ToUpper(ending)), hint)
}

// Around makes sure that the files can be written before run does its work, and are no inputs, and that nothing is left
// behind but whole files.
func (f *Files) Around(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		f.open = map[string]*outFile{}
		defer func() {
			for _, out := range f.open {
				out.discard()
			}
		}()
		inputs := inputsOf(cmd, args)
		for i, flag := range f.flags {
			if !cmd.Flags().Changed(flag.name) {
				continue
			}
			out, err := createFile(cmd.Flags().Lookup(flag.name).Value.String(), inputs...)
			if err != nil {
				return err
			}
			f.open[flag.name] = out
			if err := flag.check(out.path); err != nil {
				return err
			}
			for _, other := range f.flags[:i] {
				before := f.open[other.name]
				if before == nil {
					continue
				}
				a, errA := filepath.Abs(before.name)
				b, errB := filepath.Abs(out.name)
				if errA == nil && errB == nil && a == b {
					return problem.New(out.path, fmt.Sprintf("--%s and --%s name one file", other.name, flag.name), "")
				}
			}
		}
		return run(cmd, args)
	}
}

// Path returns the name of the file of a flag that was asked for.
func (f *Files) Path(flag string) string { return f.open[flag].path }

// Write writes the file of a flag, if it is asked for. fill returns an error if there is nothing to write.
func (f *Files) Write(flag string, fill func(w io.Writer) error) error {
	if out := f.open[flag]; out != nil {
		return out.commit(fill)
	}
	return nil
}

// outFile is a file that a command is going to write. Until commit it has another name, so
// that what has the right one is always whole: what was there before, or what is new.
type outFile struct {
	path string   // as it was given
	name string   // where it is to be, links resolved
	temp *os.File // hidden, beside it; nil once it is done with
}

// createFile makes sure that a file can be written, before the work whose result it is to
// hold. What is there must be a regular file, or a link to one, and is replaced by commit. It must
// be none of the inputs: see inputsOf.
func createFile(path string, inputs ...string) (*outFile, error) {
	if path == "-" {
		return nil, problem.New(path, "stdout has the report; ./- is a file of this name", "")
	}
	if err := checkNoInput(path, inputs); err != nil {
		return nil, Named(path, err)
	}
	f := &outFile{path: path, name: path}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		f.name = resolved
	}
	info, err := os.Lstat(f.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, problem.System(path, "", err)
	case !info.Mode().IsRegular():
		return nil, problem.New(path, "cannot be replaced: not a regular file", "")
	}
	dir, base := filepath.Split(f.name)
	if base == "" {
		return nil, problem.New(path, "not the name of a file", "")
	}
	temp := filepath.Join(dir, "."+base+".partial-"+rand.Text()[:8])
	f.temp, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		failed := problem.System(path, "", err)
		if p := &failed.Problems[0]; errors.Is(err, fs.ErrNotExist) {
			p.Hint = cmp.Or(p.Hint, "make its directory first: "+text.Quote(filepath.Clean(dir)))
		}
		return nil, failed
	}
	return f, nil
}

// inputsOf lists the paths that a command reads: its arguments, and those in flags.
func inputsOf(cmd *cobra.Command, args []string) []string {
	paths := slices.Clone(args)
	for _, name := range []string{"against", "config", "golden", "tokens"} {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			_, file, _ := strings.Cut(value, "=") // NAME=FILE
			paths = append(paths, value, file)
		}
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// checkNoInput refuses a file that is an input, or that lies in a directory that is one, unless it
// looks like a report. A weight file, index or config stands for its whole checkpoint.
func checkNoInput(path string, inputs []string) error {
	there, err := os.Stat(path)
	if err != nil {
		return nil // nothing is replaced
	}
	for _, input := range inputs {
		if snapshot, err := checkpoint.Snapshot(input); err == nil {
			input = snapshot
		}
		info, err := os.Stat(input)
		if err != nil {
			continue
		}
		dir, isPart := input, func(name string) bool { // not what this program writes beside what it prints
			return !slices.Contains([]string{".html", ".htm", ".xml", ".svg"}, strings.ToLower(filepath.Ext(name)))
		}
		if !info.IsDir() {
			dir, isPart = filepath.Dir(input), isCheckpointFile
		}
		whole := info.IsDir() || isCheckpointFile(filepath.Base(input))
		entries, _ := os.ReadDir(dir)
		if os.SameFile(info, there) || whole && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			info, err := os.Stat(filepath.Join(dir, e.Name())) // also of what a link leads to
			return err == nil && os.SameFile(info, there) && isPart(e.Name())
		}) {
			return errors.New("is among the inputs of this command: give another name")
		}
	}
	return nil
}

// isCheckpointFile recognises weights, their index, a config, and other JSON files of a checkpoint.
func isCheckpointFile(name string) bool {
	return checkpoint.IsWeights(name) || checkpoint.IsIndex(name) || strings.EqualFold(filepath.Ext(name), ".json")
}

// commit gives the file its content and its name.
func (f *outFile) commit(fill func(w io.Writer) error) error {
	w := bufio.NewWriter(f.temp)
	err := fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.temp.Sync()
	}
	if err = errors.Join(err, f.temp.Close()); err == nil {
		err = os.Rename(f.temp.Name(), f.name)
	}
	if err != nil {
		return problem.System(f.path, "", errors.Join(err, os.Remove(f.temp.Name())))
	}
	f.temp = nil
	return nil
}

// discard leaves what was there before, unless the file was committed.
func (f *outFile) discard() {
	if f.temp != nil {
		f.temp.Close()
		os.Remove(f.temp.Name())
	}
}
