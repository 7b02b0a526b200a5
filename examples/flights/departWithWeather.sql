-- Every departure comes out, whether or not there is an observation for its hour.
SELECT
  $carrier,
  $flight,
  $origin,
  $dest,
  $scheduled,
  $cancelled,
  $dep_delay,
  temp,
  wind_speed,
  precip,
  visib
FROM (SELECT 1)
LEFT JOIN observed ON origin = $origin AND hour = $hour;
