package output

// The objects of an output in a store: its files, unfinished ones under hidden names, and its journal.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/text"
)

// requests is the number of requests of one kind that are under way at once.
const requests = 16

// storeObjects is the objects of an output as they were listed, and what its journal records of them.
type storeObjects struct {
	Target
	plan    *plan.Plan
	partial string // what the names of unfinished files begin with
	journal string // what the names of the journal's objects begin with

	objects  map[string]remote.Entry // in the target
	partials map[string]remote.Entry // unfinished files, by the names that they will have
	lines    []remote.Entry          // the journal, in its order

	number    int      // of the journal's next object
	etags     []string // of complete files, since they were completed; nil before
	published []string // files on their way to the target; nil before publishing starts
	older     []string // files of the older output that is replaced
}

func newStoreObjects(t *Target, p *plan.Plan) *storeObjects {
	o := &storeObjects{Target: *t, plan: p, partial: hiddenPrefix + "partial/", journal: hiddenPrefix + "journal/"}
	if o.IsFile() {
		o.partial, o.journal = hidden(p.File, "partial")+"/", hidden(p.File, "journal")+"/"
	}
	return o
}

// refresh lists the objects.
func (o *storeObjects) refresh() error {
	o.objects, o.partials, o.lines = map[string]remote.Entry{}, map[string]remote.Entry{}, nil
	prefixes := []string{""}
	if o.IsFile() {
		prefixes = []string{o.plan.File, hidden(o.plan.File, "")}
	}
	for _, prefix := range prefixes {
		objects, err := o.store.List(prefix)
		if err != nil {
			return err
		}
		for _, x := range objects {
			if name, ok := strings.CutPrefix(x.Name, o.partial); ok {
				o.partials[name] = x
			} else if strings.HasPrefix(x.Name, o.journal) {
				o.lines = append(o.lines, x)
			} else if !o.IsFile() || x.Name == o.plan.File || x.Name == o.ManifestName() {
				o.objects[x.Name] = x
			}
		}
	}
	return nil
}

// readLines hands the records of the journal to apply and returns its head, nil if no journal is in force.
func (o *storeObjects) readLines(apply func(progress.Record)) (head *progress.Head, ready bool, err error) {
	o.number, o.published, o.older, o.etags = 1, nil, nil, nil
	for _, x := range o.lines {
		if _, err := fmt.Sscanf(x.Name, o.journal+"%d", &o.number); err != nil {
			return nil, false, fmt.Errorf("%s is not a journal of an unfinished conversion: remove it",
				text.Quote(o.store.Path(x.Name)))
		}
		o.number++
		data, err := o.store.Get(x.Name)
		if err != nil {
			return nil, false, err
		}
		for line := range bytes.Lines(data) {
			var first progress.Head
			if progress.Unseal(line, &first) && first.Format == progress.Format {
				head, ready, o.etags = &first, false, nil
				continue
			}
			var r progress.Record
			if !progress.Unseal(line, &r) || head == nil {
				continue
			}
			if r.Void {
				head, o.published = nil, nil
			}
			ready = ready || r.Ready
			if len(r.ETags) == len(o.plan.Files) {
				o.etags = r.ETags
			}
			if r.Published != nil {
				o.published, o.older = r.Published, r.Older
			}
			apply(r)
		}
	}
	return head, ready, nil
}

// appendLines writes the journal's next object.
func (o *storeObjects) appendLines(lines ...any) error {
	data, err := progress.Seal(lines...)
	if err != nil {
		return err
	}
	err = o.store.PutNew(fmt.Sprintf("%s%06d", o.journal, o.number), data)
	if errors.Is(err, fs.ErrExist) {
		return progress.ErrBusy
	}
	o.number++
	return err
}

// removeUnfinished removes unfinished files.
func (o *storeObjects) removeUnfinished() error {
	ids, err := o.store.Uploads(o.partial)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(requests)
	for name, list := range ids {
		for _, id := range list {
			g.Go(func() error { return o.store.Abort(name, id) })
		}
	}
	for _, x := range o.partials {
		g.Go(func() error { return o.store.Delete(x.Name) })
	}
	return g.Wait()
}

// removeLines removes objects of the journal.
func (o *storeObjects) removeLines(which func(number int) bool) error {
	var g errgroup.Group
	g.SetLimit(requests)
	for _, x := range o.lines {
		n := 0
		if fmt.Sscanf(x.Name, o.journal+"%d", &n); which(n) {
			g.Go(func() error { return o.store.Delete(x.Name) })
		}
	}
	return g.Wait()
}

// publish copies the files to their names, and removes what is not needed any more. A reader of an older output that
// is replaced finds it without its last files, and then the new one without them.
func (o *storeObjects) publish() error {
	moved := slices.ContainsFunc(o.published, func(name string) bool { _, ok := o.partials[name]; return !ok })
	if !moved {
		first := []string{o.plan.Index, checkpoint.ConfigName, o.ManifestName(), o.plan.File} // a reader starts from them
		for _, name := range append(first, o.older...) {
			if !slices.Contains(o.older, name) {
				continue
			}
			if err := o.store.Delete(name); err != nil {
				return err
			}
		}
	}
	for _, name := range o.published {
		x, ok := o.partials[name]
		if _, moved := o.objects[name]; !ok && moved {
			continue // by an earlier run, which removed it here
		}
		x.Name = o.partial + name
		if err := o.store.Copy(x, name); err != nil {
			return err
		}
	}
	return o.removeTraces()
}

// removeTraces removes unfinished files and the journal, whose last object voids the others meanwhile.
func (o *storeObjects) removeTraces() error {
	if err := o.removeUnfinished(); err != nil {
		return err
	}
	last := o.number
	if err := o.appendLines(progress.Record{Tensor: -1, Void: true}); err != nil {
		return err
	}
	if err := o.refresh(); err != nil {
		return err
	}
	if err := o.removeLines(func(n int) bool { return n != last }); err != nil {
		return err
	}
	return o.removeLines(func(n int) bool { return n == last })
}

// PathOf names a weight file by its hidden name.
func (o *storeObjects) PathOf(file int) string {
	return o.store.Path(o.partial + o.plan.Files[file].Name)
}
