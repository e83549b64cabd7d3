"""Steps of a conversion: how they are shown, and how they run in processes of their own."""
