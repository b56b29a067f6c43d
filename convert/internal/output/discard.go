package output

// What unfinished runs left: found without their plans, and removed.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Leftover is what an unfinished run left.
type Leftover struct {
	Output  string `json:"output"`            // path or URL that the output was to have
	Dir     string `json:"dir"`               // where the unfinished files are
	Bytes   int64  `json:"bytes"`             // that they take; in a store, of objects alone
	Uploads int    `json:"uploads,omitempty"` // in a store, uploads that were not completed
}

// Leftovers returns what unfinished runs to dst left, and those to other outputs in the directory dst.
func Leftovers(dst string, c *remote.Client) (list []Leftover, err error) {
	if remote.Is(dst) {
		o, err := leftObjects(dst, c)
		if err != nil || len(o.lines)+len(o.partials) == 0 {
			return nil, err
		}
		x, err := o.leftover()
		return []Leftover{x}, err
	}
	add := func(p place) {
		if err := p.isOurs(); err == nil || errors.Is(err, errComplete) {
			list = append(list, p.leftover())
		}
	}
	for _, p := range leftPlaces(dst) {
		add(p)
	}
	entries, _ := os.ReadDir(dst) // none if it is a file, or absent
	var seen []string
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), ".")
		if ext := filepath.Ext(name); !ok || !slices.Contains([]string{".partial", ".journal", ".parts"}, ext) {
			continue
		}
		path := filepath.Join(dst, strings.TrimSuffix(name, filepath.Ext(name)))
		if slices.Contains(seen, path) || filepath.Base(path) == "dsmoe" {
			continue // the hidden directory of dst itself
		}
		seen = append(seen, path)
		add(besideOf(directoryAt(path)))
	}
	return list, nil
}

// Discard removes what unfinished runs to dst left, and returns it. An output that is complete but for its name, and one
// that a run on this machine writes, are errors. A run that writes to a store meanwhile ends with an error.
func Discard(dst string, d *disk.Disk, c *remote.Client) (list []Leftover, err error) {
	if remote.Is(dst) {
		o, err := leftObjects(dst, c)
		if err != nil || len(o.lines)+len(o.partials) == 0 {
			return nil, err
		}
		if _, _, err := o.readLines(func(progress.Record) {}); err != nil {
			return nil, err
		}
		switch {
		case o.published != nil:
			return nil, errComplete
		case len(o.lines) == 0:
			return nil, fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it",
				text.Quote(o.store.Path(o.partial)))
		}
		x, err := o.leftover()
		if err != nil {
			return nil, err
		}
		return []Leftover{x}, o.removeTraces()
	}
	for _, p := range leftPlaces(dst) {
		x := p.leftover()
		if err := p.discardLeft(d); err != nil {
			return list, err
		}
		list = append(list, x)
	}
	return list, nil
}

// leftPlaces are the places in which runs to dst left something.
func leftPlaces(dst string) (places []place) {
	t := directoryAt(dst)
	for _, p := range []place{besideOf(t), insideOf(t)} {
		if exists(p.dir) || exists(p.journalPath) || exists(p.partsDir) {
			places = append(places, p)
		}
	}
	return places
}

// leftover describes what is left in a place.
func (p *place) leftover() Leftover {
	return Leftover{Output: p.Path, Dir: p.dir, Bytes: disk.Used(p.dir)}
}

// isOurs returns an error unless a journal says that runs left what is in the place and did not complete their output.
func (p *place) isOurs() error {
	if !exists(p.journalPath) {
		all, err := (&diskOutput{place: *p}).journals()
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it", text.Quote(p.dir))
		}
		return err
	}
	f, err := os.Open(p.journalPath)
	if err != nil {
		return problem.System(p.journalPath, "", err)
	}
	defer f.Close()
	ready, published := false, false
	head, _, err := progress.ReadJournal(f, func(r progress.Record) {
		ready = (ready || r.Ready) && !r.Void
		published = published || r.Published != nil
	})
	switch {
	case err != nil:
		return err
	case head == nil && !progress.IsOurs(f):
		return fmt.Errorf("%s is not a journal of an unfinished conversion: remove it", text.Quote(p.journalPath))
	case ready && published:
		return errComplete
	}
	return nil
}

// errComplete refuses to discard an output that only its files' names lack.
var errComplete = errors.New("the output is complete, but its files have not all got their names: the same command " +
	"again ends that")

// discardLeft removes what is left in a place: the journal, which says whose it is, last.
func (p *place) discardLeft(d *disk.Disk) error {
	if exists(p.journalPath) {
		j, err := progress.LockJournal(d, p.journalPath)
		if err != nil {
			return err
		}
		defer j.Close()
	}
	if err := p.isOurs(); err != nil {
		return err
	}
	if !p.fills {
		if err := takeBack(d, p.Path); err != nil {
			return err
		}
	}
	for _, dir := range []string{p.dir, p.partsDir} {
		if err := d.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := d.Remove(p.journalPath); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leftObjects lists what runs to dst, in a store, left.
func leftObjects(dst string, c *remote.Client) (*storeObjects, error) {
	p := &plan.Plan{File: (plan.Options{}).Into(dst).File}
	t, err := storeTarget(dst, p, c)
	if err != nil {
		return nil, err
	}
	o := newStoreObjects(t, p)
	return o, o.refresh()
}

// leftover describes what is left in a store.
func (o *storeObjects) leftover() (x Leftover, err error) {
	x = Leftover{Output: o.Path, Dir: o.store.Path(o.partial)}
	for _, object := range o.partials {
		x.Bytes += object.Size
	}
	ids, err := o.store.Uploads(o.partial)
	for _, list := range ids {
		x.Uploads += len(list)
	}
	return x, err
}
