// Package weights is the one reader of a checkpoint's tensors. A checkpoint names and
// arranges them in several ways: experts apart or fused, the decoder with or without
// the "model." before its names, FP8 with scales per block. New maps all of these to
// the names and shapes of the table, one Weight each; a Weight is viewed in place, read
// in parts, or streamed as numbers. The package opens no file.
package weights

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Headers are the header entries of a checkpoint.
type Headers interface {
	// Tensors yields the header entries, in a fixed order; it reads no data. Of a tensor whose
	// header was not read only the name is known: its dtype is tensor.Invalid.
	Tensors() iter.Seq[tensor.Info]
}

// Source is any set of named tensors: an opened checkpoint, a synthetic model. It is
// safe for concurrent use.
type Source interface {
	Headers
	// Tensor returns a view of the named tensor, valid until the owner is closed,
	// or an error that names the file and the tensor.
	Tensor(name string) (tensor.Tensor, error)
}

// Unviewed is a Source that may have too many bytes for the address space, or tensors in
// another order than they are stored in: these are read into memory, by Weight.View, when
// they are needed.
type Unviewed interface {
	Source
	ReaderAt
	// HasView reports whether the named tensor can be viewed, and all that can at once. The
	// answer does not change.
	HasView(name string) bool
	// Room says why n bytes cannot be read into memory; nil if they can.
	Room(n int64) error
	// Aside moves data out of memory. It returns a view of the same bytes, and what gives the view up; where there is no
	// other place, data itself.
	Aside(data []byte) (view []byte, free func())
}

// ReaderAt reads the bytes of stored tensors into memory of the caller's, so that what is
// in memory at once is the caller's choice. It is safe for concurrent use.
type ReaderAt interface {
	// ReadAt fills dst with the named tensor's bytes from offset on.
	ReadAt(name string, dst []byte, offset int64) error
}

// Weight is one tensor of a checkpoint, as the table has it: a run of the elements of a
// stored tensor.
type Weight struct {
	tensor.Info // the table's name and the shape of this weight alone; the dtype as it is stored
	table.Place // where in the model it belongs; scales have the layer and expert of their weight, but no row

	Part   string       // what its name has behind that of the weight it belongs to: see tensor.PartOf
	Stored string       // name of the tensor that holds it, as it is in the file
	First  int64        // its first element there
	Shared bool         // Stored holds other weights too: experts that are fused
	fused  *table.Fused // Stored, if Shared
	scales bool         // it is a part of another weight
	Scales *Weight      // of a weight whose stored form has scales; nil if it has none, or they are absent
	Block  [2]int       // rows and columns of such a weight that share a scale

	// Places is where its elements lie in Stored, which holds nothing else, if not in order; else nil.
	Places *tensor.Places

	// Header is the stored tensor's header entry under the table's name, if that is not the weight's: it has
	// several codes in an element, or its format calls it otherwise. nil for other weights.
	Header *tensor.Info

	form  *tensor.Form       // of codes in elements of another dtype; nil: the dtype's
	parts map[string]*Weight // the weights of its form's Parts but the first
	row   *table.Row         // of the weight it belongs to
}

// Owner returns the name of the weight that it belongs to: of scales, of what they scale.
func (w *Weight) Owner() string { return strings.TrimSuffix(w.Name, w.Part) }

// OwnerOf returns the name of the weight that a stored tensor belongs to: its own, or of
// scales that of what they scale.
func OwnerOf(name string) string { return tensor.OwnerOf(name) }

// Fused returns the fused tensor that holds the weight, or its scales, where experts are not
// apart, and the index of its matrix there; nil for other weights.
func (w *Weight) Fused() (f *table.Fused, index int) {
	if w.Shared {
		return w.fused, slices.Index(w.fused.Roles, w.OwnerPlace().Role())
	}
	return table.FusedOf(w.OwnerPlace())
}

// OwnerPlace returns the place of the weight that it belongs to: of scales, of what they scale.
func (w *Weight) OwnerPlace() table.Place {
	return table.Place{Row: w.row, Layer: w.Layer, Expert: w.Expert}
}

// FusedName returns the name of the tensor that Fused describes.
func (w *Weight) FusedName() string {
	f, _ := w.Fused()
	return f.NameIn(w.Layer) + w.Part
}

// IsScales reports whether the weight is the Scales of another, or another part of its stored form.
func (w *Weight) IsScales() bool { return w.scales }

// ScalesActivations reports whether the weight is none, but scales what a running model computes: a cache, or the inputs
// of a weight without scales of its own.
func (w *Weight) ScalesActivations() bool {
	return w.Row == nil && !w.scales && (strings.HasPrefix(w.Part, tensor.InputParts) || tensor.ScalesActivations(w.Name))
}

// Input returns the scale of the inputs that the weight is multiplied with; nil if there is none.
func (w *Weight) Input() *Weight {
	return cmp.Or(w.parts[tensor.InputParts+"_scale"], w.parts[tensor.InputParts+"_global_scale"])
}

// Form returns the stored form.
func (w *Weight) Form() *tensor.Form {
	if w.form != nil {
		return w.form
	}
	return w.DType.Form()
}

// Scaled reports whether the weight is codes with scales beside them. Scales have none of their own.
func (w *Weight) Scaled() bool { return w.Part == "" && w.DType.Scaled() }

// AsStored returns the weight as the file has it: a tensor whose elements may hold several codes.
func (w *Weight) AsStored() *Weight {
	if w.Header == nil {
		return w
	}
	return &Weight{Info: *w.Header, Place: w.Place, Part: w.Part, Stored: w.Stored, row: w.row, scales: w.scales}
}

// Unread reports whether nothing but the weight's name is known: the header of its file was not
// read.
func (w *Weight) Unread() bool { return w.DType == tensor.Invalid }

// Blocks returns how a matrix with scales is scaled.
func (w *Weight) Blocks() tensor.Blocks {
	return tensor.Blocks{Rows: w.Shape[0], Cols: w.Shape[1], BlockRows: w.Block[0], BlockCols: w.Block[1]}
}

// CheckScales returns why a weight of a form with scales cannot be read as numbers: it is no
// matrix, or its scales are missing or are not one float per block, which is a *ScalesError.
// Other weights have no scales to check.
func (w *Weight) CheckScales() error {
	if !w.Scaled() {
		return nil
	}
	if len(w.Shape) != 2 {
		return fmt.Errorf("dtype %s, shape %v: only a matrix can have a scale per block", w.DType, w.Shape)
	}
	rows, cols := w.Blocks().Grid()
	e := &ScalesError{Weight: w, Want: []int{rows, cols}}
	if e.Missing() || e.Misshapen() {
		return e
	}
	if !w.Form().TakesScales(w.Scales.DType) {
		return e
	}
	return w.checkParts()
}

// ScalesError says why the scales of a weight cannot be used: they are missing, have
// another shape than one scale per block, or are no floats.
type ScalesError struct {
	Weight *Weight // whose elements are codes
	Want   []int   // the shape that its scales must have
}

// Name returns the name of the scales, whether or not they are missing.
func (e *ScalesError) Name() string {
	f := e.Weight.Form()
	return f.PartName(e.Weight.Name, f.Parts[0])
}

// Missing reports whether there are no scales.
func (e *ScalesError) Missing() bool { return e.Weight.Scales == nil }

// Misshapen reports whether there are scales, of another shape.
func (e *ScalesError) Misshapen() bool {
	if e.Missing() {
		return false
	}
	got := e.Weight.Scales.Shape
	if e.Want[0]*e.Want[1] == 1 && len(got) == 0 || e.Want[1] == 1 && len(got) == 1 { // of all, of a row each
		got = []int{e.Weight.Scales.Len(), 1}
	}
	return !slices.Equal(got, e.Want)
}

// Error says what is wrong, as a fault of the weight.
func (e *ScalesError) Error() string {
	what := fmt.Sprintf("dtype %s, but its scales", e.Weight.DType)
	switch {
	case e.Missing():
		return fmt.Sprintf("%s, %s, are missing", what, text.Quote(e.Name()))
	case e.Misshapen():
		return fmt.Sprintf("%s have shape %v: blocks of %v give %v", what, e.Weight.Scales.Shape, e.Weight.Block, e.Want)
	}
	return fmt.Sprintf("%s have dtype %s: F32, F16, BF16 or F8_E8M0 is expected", what, e.Weight.Scales.DType)
}

// Implied reports whether c implies the stored tensor of that name: it is a weight of the model, a part of
// one, or the fused experts of a layer.
func Implied(c *config.Config, stored string) bool {
	f := table.FamilyOf(c)
	name := TableName(c, stored)
	for _, end := range []string{"weight_packed", "qweight", "qzeros", "scales", "g_idx"} { // codes, or beside them
		if module, ok := strings.CutSuffix(name, "."+end); ok {
			name = module + ".weight"
		}
	}
	if name = OwnerOf(name); f.Place(TableName(c, stored)).Row != nil {
		name = TableName(c, stored)
	}
	p := f.Place(name)
	if fused, layer := table.FusedAt(name); fused != nil {
		p = table.Place{Row: f.Row(fused.Module, fused.Roles[0]), Layer: layer}
	}
	return p.Row != nil && p.Layer < c.NumHiddenLayers+f.PredictionLayers(c) && p.Expert < c.MoE.NRoutedExperts &&
		(p.Row.Holds(c, p.Layer) || p.Is(table.Head, table.LMHead)) // a tied head may be stored
}

// AsUnviewed returns src, which has the weight, if that has to be read: into memory, or into another order.
func (w *Weight) AsUnviewed(src Source) (u Unviewed, ok bool) {
	u, ok = src.(Unviewed)
	return u, ok && (w.Places != nil || !u.HasView(w.Stored))
}

// View returns the weight's elements as src holds them, without copying any unless it has to
// be read: see AsUnviewed.
func (w *Weight) View(src Source) (tensor.Tensor, error) {
	if u, ok := w.AsUnviewed(src); ok {
		if err := u.Room(w.Bytes()); err != nil {
			return tensor.Tensor{}, fmt.Errorf("tensor %s: %w", text.Quote(w.Name), err)
		}
		t := tensor.Tensor{DType: w.DType, Shape: w.Shape, Data: make([]byte, w.Bytes())}
		return t, w.ReadAt(u, t.Data, 0)
	}
	t, err := src.Tensor(w.Stored)
	if err != nil {
		return tensor.Tensor{}, err
	}
	begin := w.Offset()
	end := begin + w.Bytes()
	if w.Places != nil {
		t.Data = w.Places.Part(nil, t.Data, 0, end, w.Places.Pick)
	}
	return tensor.Tensor{DType: w.DType, Shape: w.Shape, Data: t.Data[begin:end:end]}, nil
}

// ReadAt fills dst with the weight's bytes from offset on. Of a weight with Places it reads, or views, all.
func (w *Weight) ReadAt(src ReaderAt, dst []byte, offset int64) error {
	if w.Places != nil {
		stored, err := w.whole(src)
		if err == nil {
			w.Places.Part(dst, stored, offset, offset+int64(len(dst)), w.Places.Pick)
		}
		return err
	}
	return src.ReadAt(w.Stored, dst, w.Offset()+offset)
}

// Offset returns where in the stored tensor the weight's bytes begin.
func (w *Weight) Offset() int64 { return w.DType.Bytes(w.First) }

// Set is the tensors of a checkpoint under the names of the table. It is not changed
// once made.
type Set struct {
	// Misfits are stored tensors that look like fused experts but cannot be taken apart,
	// and weights that are there twice.
	Misfits []misfit

	list   []*Weight
	byName map[string]*Weight
	misfit map[string]bool // the names of Misfits

	places map[placesKey]*tensor.Places // of the weights

	config  *config.Config
	family  *table.Family
	namings uint                   // a bit for each of the family's that has all names
	headers map[string]tensor.Info // of the stored tensors, by the table's names
}

// misfit is a tensor that cannot be understood, and why.
type misfit struct {
	tensor.Info        // the table's name; the dtype and shape as they are stored
	Cause       string // what is wrong: "shape [3 4]: 3 experts, config says 8"
}

// New maps the tensors of h to the names of the table. c says how many experts a fused
// tensor holds and what form quantization_config announces; the tensors beside a weight decide its form. These are known:
//
//	language_model.model.layers.0.…         beside a vision tower: the prefix is cut off, see config.Config.Prefix
//	layers.0.…                              the decoder saved without its head: "model." is put before
//	….mlp.experts.gate_up_proj [E, 2I, H]   all experts in one: taken apart
//	….weight_scale_inv                      of an FP8 weight: its Scales; see tensor.Form
//	layers.0.attn.wq_a.weight               names of other files: see table.Naming
//
// All other tensors keep their names.
func New(c *config.Config, h Headers) *Set {
	n := 0
	for range h.Tensors() {
		n++
	}
	s := &Set{list: make([]*Weight, 0, n), byName: make(map[string]*Weight, n), misfit: map[string]bool{}, places: map[placesKey]*tensor.Places{},
		config: c, family: table.FamilyOf(c), headers: make(map[string]tensor.Info, n)}
	prefix := ""
	for info := range h.Tensors() {
		if strings.HasPrefix(info.Name, "model.") {
			prefix = ""
			break
		} else if strings.HasPrefix(info.Name, "layers.") {
			prefix = "model."
		}
	}
	named := func(info tensor.Info) tensor.Info {
		info.Name = TableName(c, info.Name)
		if s.family.Namings == nil && !strings.HasPrefix(info.Name, "lm_head.") {
			info.Name = prefix + info.Name
		}
		return info
	}
	for stored := range h.Tensors() {
		info := named(stored)
		s.headers[info.Name] = info
	}
	if s.family.Namings != nil {
		s.compareNamings(h)
	}
	for stored := range h.Tensors() {
		s.take(named(stored), stored.Name)
	}
	if head := s.byName[table.HeadName]; head != nil && c.TieWordEmbeddings {
		if row := s.family.Row(table.Embedding, table.EmbedTokens); s.byName[row.Name] == nil { // left out as it is the same
			head.Name, head.Row, head.row = row.Name, row, row
			s.byName[row.Name] = head
			delete(s.byName, table.HeadName)
		}
	}
	s.linkScales()
	s.headers = nil
	return s
}

// compareNamings finds which of the family's namings the names of h are of. Names that only other namings than the first
// ones' have are misfits.
func (s *Set) compareNamings(h Headers) {
	s.namings = 1<<len(s.family.Namings) - 1
	first := map[uint]string{} // a tensor with names of these namings
	for stored := range h.Tensors() {
		_, namings := s.family.Spell(s.config, stored.Name)
		if namings != 0 && s.namings&namings == 0 {
			cause := fmt.Sprintf("is %s, but the other tensors have %s", s.whose(namings), s.whose(s.namings))
			for _, others := range slices.Sorted(maps.Keys(first)) {
				if others&namings == 0 {
					cause = fmt.Sprintf("is %s, but %s is %s", s.whose(namings), text.Quote(first[others]), s.whose(others))
					break
				}
			}
			s.refuse(stored, cause)
		} else if namings != 0 {
			s.namings &= namings
			if _, known := first[namings]; !known {
				first[namings] = stored.Name
			}
		}
	}
}

// whose describes namings: "a published name or a name of save_pretrained".
func (s *Set) whose(namings uint) string {
	var names []string
	for i, n := range s.family.Namings {
		if namings&(1<<i) != 0 {
			names = append(names, n.Whose)
		}
	}
	return strings.Join(names, " or ")
}

// Naming returns how the checkpoint names its weights; nil if the family has no namings.
func (s *Set) Naming() *table.Naming {
	for i := range s.family.Namings {
		if s.namings&(1<<i) != 0 {
			return &s.family.Namings[i]
		}
	}
	return nil
}

// Unfound returns the first routed expert's weight that transformers does not find: it lies apart under names with which
// that finds fused ones alone. It returns nil if there is none.
func (s *Set) Unfound(c *config.Config) *Weight {
	n := s.Naming()
	if n == nil || !n.Fuses || !s.family.Joined {
		return nil
	}
	all := s.All()
	if i := slices.IndexFunc(all, func(w *Weight) bool {
		return w.Module() == table.RoutedExperts && !w.Shared && w.Layer < c.NumHiddenLayers
	}); i >= 0 {
		return all[i]
	}
	return nil
}

// StoredName returns what the checkpoint calls, or would call, the tensor of the table's name.
func (s *Set) StoredName(c *config.Config, name string) string {
	if n := s.Naming(); n != nil {
		return n.Of(c, name)
	}
	return name
}

// Nearest returns a name of the checkpoint's naming that is most like stored, which the table does not know; "" if the
// family has no namings.
func (s *Set) Nearest(stored string) string { return s.family.Nearest(stored, s.namings) }

// TableName returns the table's name of a stored tensor: without the prefix that c gives the language
// model's, and of the family's own where files call it otherwise. Other names stay.
func TableName(c *config.Config, stored string) string {
	if f := table.FamilyOf(c); f.Namings != nil {
		name, _ := f.Spell(c, stored)
		return name
	}
	if name, cut := strings.CutPrefix(stored, c.Prefix()); cut && table.InModel(name) {
		return name
	}
	return stored
}

// take adds the weights of a stored tensor, which info names as the table does.
func (s *Set) take(info tensor.Info, stored string) {
	named := info
	part, form, places := "", (*tensor.Form)(nil), (*tensor.Places)(nil)
	if strings.HasSuffix(info.Name, ".scale") && s.family.Place(info.Name).Row != nil { // a weight that is called as scales are
	} else if !info.DType.Casts() && !info.DType.Blocked() || !strings.HasSuffix(info.Name, ".weight") {
		slot := s.slotOf(tensor.OwnerOf(info.Name))
		announced, columns := tensor.FormOf(slot.Scheme(s.config).Method), 0
		if len(slot.Shape) == 2 {
			columns = slot.Shape[1]
		}
		info, part, form, places = tensor.PartOf(info, s.header, announced, columns)
	}
	owner := strings.TrimSuffix(info.Name, part)
	if places != nil { // tensors that are alike share one
		key := placesKey{part, info.DType, [2]int(info.Shape)}
		if s.places[key] == nil {
			s.places[key] = places
		}
		places = s.places[key]
	}
	w := Weight{Info: info, Place: s.family.Place(owner), Part: part, Stored: stored, Places: places, form: form}
	if info.Name != named.Name || info.DType != named.DType {
		w.Header = &named
	}
	if w.Row == nil && w.Expert < 0 {
		if f, _ := table.FusedAt(owner); f != nil {
			w.Shared, w.fused = true, f
			s.split(f, w)
			return
		}
	}
	s.add(s.place(w))
}

// header returns the header entry of the stored tensor that the table calls name.
func (s *Set) header(name string) (tensor.Info, bool) {
	info, ok := s.headers[name]
	return info, ok
}

// slotOf returns the slot of the weight that owns a tensor, with the shape that the config implies; one without a row if
// the table does not know it.
func (s *Set) slotOf(owner string) table.Slot {
	for _, end := range []string{"weight_packed", "qweight"} {
		if module, ok := strings.CutSuffix(owner, end); ok {
			owner = module + "weight"
		}
	}
	slot := table.Slot{Name: owner, Place: s.family.Place(owner)}
	if slot.Row != nil {
		slot.Shape = slot.Row.Sizes(s.config, slot.Layer)
	}
	return slot
}

// placesKey is what Places depend on in a checkpoint.
type placesKey struct {
	part  string
	dtype tensor.DType
	shape [2]int
}

// place finishes a weight whose Place is that of its owner.
func (s *Set) place(w Weight) *Weight {
	if w.row = w.Row; w.Part != "" {
		w.Row = nil
	}
	return &w
}

func (s *Set) add(w *Weight) {
	if first := s.byName[w.Name]; first != nil {
		s.refuse(w.Info, fmt.Sprintf("is there twice: in %s and in %s", text.Quote(first.Stored), text.Quote(w.Stored)))
		return
	}
	s.list = append(s.list, w)
	s.byName[w.Name] = w
}

func (s *Set) refuse(t tensor.Info, cause string) {
	s.Misfits = append(s.Misfits, misfit{t, cause})
	s.misfit[t.Name] = true
}

// split adds the weights that a fused tensor consists of, in the order of its elements.
func (s *Set) split(f *table.Fused, fused Weight) {
	shape, n, axes, first, end := fused.Shape, len(f.Roles), 3, 0, s.config.MoE.NRoutedExperts
	if f.Module != table.RoutedExperts {
		axes, first, end = 2, -1, 0
	}
	cause := ""
	switch {
	case fused.Unread():
	case s.family.Row(f.Module, f.Roles[0]) == nil:
		cause = fmt.Sprintf("model_type %s has no %s", s.config.ModelType, f.Roles[0])
	case len(shape) != axes || shape[axes-2]%n != 0:
		cause = fmt.Sprintf("shape %v is not that of fused experts", shape)
	case axes == 3 && shape[0] != end:
		cause = fmt.Sprintf("shape %v: %d experts, config says %d", shape, shape[0], end)
	}
	if cause != "" {
		s.refuse(tensor.Info{Name: s.StoredName(s.config, fused.Name), DType: fused.DType, Shape: shape}, cause)
		for _, role := range f.Roles {
			if usual, _ := table.FusedOf(table.Place{Row: s.family.Row(f.Module, role)}); usual != nil {
				s.misfit[usual.NameIn(fused.Layer)] = true
			}
		}
		return
	}
	size := int64(0)
	if !fused.Unread() {
		fused.Shape = []int{shape[axes-2] / n, shape[axes-1]}
		size = int64(fused.Len())
	}
	for e := first; e < end; e++ {
		for i, role := range f.Roles {
			w := fused
			w.Place = table.Place{Row: s.family.Row(f.Module, role), Layer: fused.Layer, Expert: e}
			w.Name = w.Row.NameIn(w.Layer, e) + w.Part
			w.First = int64(max(e, 0)*n+i) * size
			s.add(s.place(w))
		}
	}
}

// partsOf returns the names of all tensors beside a weight.
func (s *Set) partsOf(w *Weight) (names []string) {
	if w.Scales != nil {
		names = append(names, w.Scales.Name)
	}
	for _, part := range w.parts {
		names = append(names, part.Name)
	}
	return names
}

func (s *Set) linkScales() {
	for _, part := range s.list {
		w := s.byName[part.Owner()]
		if part.Part == "" || w == nil || !w.Scaled() {
			continue
		}
		if part.scales = true; part.Part == w.Form().Parts[0] {
			w.Scales = part
			continue
		}
		if w.parts == nil {
			w.parts = map[string]*Weight{}
		}
		w.parts[part.Part] = part
	}
	for _, w := range s.list {
		if !w.Scaled() || len(w.Shape) != 2 {
			continue
		}
		block := [2]int{}
		if scheme := s.slotOf(w.Name).Scheme(s.config); scheme.Method == w.Form().Method {
			block = scheme.Block
		}
		b := w.Form().Blocks(w.Shape, block)
		if w.Scales != nil && !w.Scales.Unread() {
			if scales := w.Scales.Shape; s.family.Unknown != nil && len(scales) == 2 && scales[0] == w.Shape[0] {
				block[0] = 1 // a table: its rows have scales of their own
			}
			b = w.Form().BlocksOf(w.Shape, w.Scales.Shape, block)
		}
		w.Block = [2]int{b.BlockRows, b.BlockCols}
	}
}

// All returns every weight, those that are Scales of others too, in the order of the
// stored tensors. The slice is shared: do not change it.
func (s *Set) All() []*Weight { return s.list }

// Find returns the weight of that name, nil if there is none.
func (s *Set) Find(name string) *Weight { return s.byName[name] }

// Has reports whether there is a weight of that name, be it in one of the Misfits.
func (s *Set) Has(name string) bool { return s.Find(name) != nil || s.InMisfit(name) }

// InMisfit reports whether a weight that Find does not know is held by one of the Misfits.
// Whoever tells of those need not call it missing.
func (s *Set) InMisfit(name string) bool {
	p := s.family.Place(name)
	f, _ := table.FusedOf(p)
	return f != nil && s.misfit[f.NameIn(p.Layer)]
}

// Holders returns the stored tensors of h that hold a wanted weight, or the weight of wanted scales.
func Holders(c *config.Config, h Headers, wanted func(*Weight) bool) map[string]bool {
	s, holders := New(c, h), map[string]bool{}
	for _, w := range s.list {
		if wanted(w) {
			holders[w.Stored] = true
			if owner := s.Find(w.Owner()); owner != nil {
				holders[owner.Stored] = true
			}
		}
	}
	return holders
}

// PartsOf names the parts of a model that stored tensors belong to, layers by their numbers:
// "layers 2-5, lm_head.weight".
func PartsOf(stored []string) string {
	layers, parts := map[int]bool{}, []string{}
	for _, name := range stored {
		if at := table.PlaceOf(nil, name); at.Layer >= 0 {
			layers[at.Layer] = true
		} else {
			parts = append(parts, text.Quote(name))
		}
	}
	if numbers := slices.Sorted(maps.Keys(layers)); numbers != nil {
		noun := "layers "
		if len(numbers) == 1 {
			noun = "layer "
		}
		parts = append([]string{noun + text.Ranges(numbers)}, parts...)
	}
	return text.Some(parts, maxParts, ", ")
}

// maxParts is the number of parts that PartsOf names.
const maxParts = 4
