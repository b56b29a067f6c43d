package experts

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect/inspecttest"
)

// TestLimitOfTrends_every: the experts of a layer, or its shared ones, that are 20 times as large as those of the layers around
// it, or a twentieth.
func TestLimitOfTrends_every(t *testing.T) {
	t.Parallel()
	found := func(planted []string, by float64) (names []string) {
		s := inspecttest.Model(t, inspecttest.Kind{Layers: 7}, 2)
		for _, name := range planted {
			s.InFloat32(t, name)
			s.Change(name, func(values []float32) {
				inspecttest.Row(0, len(values), inspecttest.Times(float32(by)))(values)
			})
		}
		for _, o := range examined(t, s, Options{}).Findings {
			names = append(names, fmt.Sprint(o.ID, " ", o.Tensor))
		}
		return names
	}
	for i, layer := range []int{2, 4, 6} {
		if i > 0 && !configtest.Every(t) {
			break
		}
		var routed []string
		for e := range 16 {
			routed = append(routed, inspecttest.ExpertName(layer, e, "up"))
		}
		shared := fmt.Sprintf("model.layers.%d.mlp.shared_experts.down_proj.weight", layer)
		for j, planted := range [][]string{routed, {shared}} {
			for k, by := range []float64{24, 1. / 24} { // the layers of the model are up to 1.1 apart
				if k == j || configtest.Every(t) {
					require.Equal(t, []string{"trend " + planted[0]}, found(planted, by))
				}
			}
			for k, by := range []float64{17, 1. / 17} {
				if k == j || configtest.Every(t) {
					require.Empty(t, found(planted, by))
				}
			}
		}
	}
}
