package experts

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect/inspecttest"
)

// TestLimitOfTrends: the experts of a layer that are 20 times as large as those of the layers around it, or a twentieth.
func TestLimitOfTrends(t *testing.T) {
	t.Parallel()
	found := func(layer int, by float64) (names []string) {
		s := inspecttest.Model(t, inspecttest.Kind{Layers: 7}, 2)
		for e := range 16 {
			s.InFloat32(t, inspecttest.ExpertName(layer, e, "up"))
			s.Change(inspecttest.ExpertName(layer, e, "up"), func(values []float32) {
				inspecttest.Row(0, len(values), inspecttest.Times(float32(by)))(values)
			})
		}
		for _, o := range examined(t, s, Options{}).Findings {
			names = append(names, fmt.Sprint(o.ID, " ", o.Tensor))
		}
		return names
	}
	for _, layer := range []int{2, 4, 6} {
		want := []string{"trend " + inspecttest.ExpertName(layer, 0, "up")}
		for _, by := range []float64{24, 1. / 24} { // the layers of the model are up to 1.1 apart
			require.Equal(t, want, found(layer, by))
		}
		for _, by := range []float64{17, 1. / 17} {
			require.Empty(t, found(layer, by))
		}
	}
}
