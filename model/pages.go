package model

// Pages are the memory that weights are mapped into: see Options.Pages.
type Pages interface {
	WillNeed(data []byte) // is about to be read
	DontNeed(data []byte) // is not read for a while
}

// willNeed fetches ahead what layer l reads whatever its gate decides; which experts
// it reads is known, and fetched, after that.
func (p *pass[V]) willNeed(l int) {
	if p.o.Pages == nil || l >= len(p.m.Model.Layers) {
		return
	}
	for row, w := range p.m.layerWeights(l) {
		if row.Module != RoutedExperts {
			fetch(p.o.Pages, w)
		}
	}
}

// fetchExperts fetches the experts of layer l ahead that some token was routed to.
func (p *pass[V]) fetchExperts(l int, slots [][]int) {
	if p.o.Pages == nil {
		return
	}
	rows := FamilyOf(p.config).expertRows()
	for e := range slots {
		if len(slots[e]) == 0 {
			continue
		}
		for _, row := range rows {
			fetch(p.o.Pages, row.place(p.m, l, e))
		}
	}
}

func fetch(pages Pages, w *Weight) {
	if len(w.Data) > 0 {
		pages.WillNeed(w.Data)
	}
}

// dontNeed lets a layer's pages go, if it will not be read again for a gradient.
func (p *pass[V]) dontNeed(l int) {
	if p.o.Pages == nil || p.o.Training {
		return
	}
	for _, w := range p.m.layerWeights(l) {
		if len(w.Data) > 0 {
			p.o.Pages.DontNeed(w.Data)
		}
	}
}
